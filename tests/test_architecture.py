"""What holds the house up: the direction of imports, the shape of a paper, configs that compose, commands that exist."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from common import claims, experiment, line, optional, settings
from common.catalogue import catalogue, experiments
from common.data import registry
from common.files import ROOT

PAPERS = sorted(path.parent.name for path in (ROOT / "papers").glob("*/train.py"))
SOURCES = sorted(path for folder in ("papers", "common", "scripts") for path in (ROOT / folder).rglob("*.py"))
YAMLS = sorted((ROOT / "configs").rglob("*.yaml"))
JOBS = [(paper, path.stem) for paper in PAPERS for path in sorted((ROOT / "configs" / paper).glob("*.yaml"))]
EXPERIMENTS = [(paper, verb, e.name) for paper, verb in JOBS for e in experiments(paper, verb)]


def imported(path: Path) -> set[str]:
    """The modules that a file imports, in any scope."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_from_papers_to_common_to_libraries(path):
    parts = path.relative_to(ROOT).parts
    for module in imported(path):
        first, _, rest = module.partition(".")
        if parts[0] == "common":
            assert first not in ("papers", "scripts", "tests"), f"{path} imports {module}"
        if parts[0] == "papers":
            assert first not in ("scripts", "tests"), f"{path} imports {module}"
            if first == "papers" and rest and len(parts) > 2:
                assert rest.split(".")[0] == parts[1], f"{path} imports another paper: {module}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_unpickled(path):
    tree = ast.parse(path.read_text())
    assert not imported(path) & {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        text = ast.unparse(node.func)
        options = {k.arg: ast.unparse(k.value) for k in node.keywords}
        if text == "torch.load":
            assert options.get("weights_only") == "True", f"{path}:{node.lineno}"
        if text in ("np.load", "numpy.load"):
            assert options.get("allow_pickle", "False") == "False", f"{path}:{node.lineno}"
        assert text not in ("eval", "exec", "pd.read_pickle", "yaml.load", "yaml.unsafe_load"), f"{path}:{node.lineno}"


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_has_its_parts(paper):
    for part in (f"papers/{paper}/README.md", f"papers/{paper}/claims.yaml", f"configs/{paper}/train.yaml"):
        assert (ROOT / part).is_file(), part
    assert list((ROOT / "tests" / "papers" / paper).glob("test_*.py")), f"tests/papers/{paper}"
    assert {"smoke", "ci"} <= {e.name for e in experiments(paper, "train")}
    for _, verb in [job for job in JOBS if job[0] == paper]:
        assert (ROOT / "papers" / paper / f"{verb}.py").is_file(), f"config without a job: {verb}"
    doc = ast.get_docstring(ast.parse((ROOT / "papers" / paper / "__init__.py").read_text())) or ""
    assert re.match(r"[^:\n]+: [^\n]+ \([^\n]+, ICML 2024\)\.(\n|$)", doc), (
        "Short name: Full title (Authors, ICML 2024)."
    )


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_follows_the_frame(paper):
    folder = ROOT / "papers" / paper
    train = (folder / "train.py").read_text()
    assert "run_parts(" in train, "a train.py is a table of parts: common.experiment.run_parts"
    assert 'if __name__ == "__main__":\n    main(train)' in train
    assert "exports(" in (folder / "__init__.py").read_text(), "public names are imported at first use: common.lazy"
    assert not (folder / "figures").exists(), "pictures that a chapter shows lie in record/figures, made by a run"


@pytest.mark.parametrize(("paper", "verb"), [*JOBS, ("scripts", "make_stdlib_lm")])
def test_every_job_composes(paper, verb):
    assert settings.compose(paper, verb).seed == 0


@pytest.mark.parametrize(("paper", "verb", "name"), EXPERIMENTS)
def test_every_experiment_composes_and_has_a_line(paper, verb, name):
    described = next(e for e in experiments(paper, verb) if e.name == name)
    assert described.title, "the first comment of the file is shown by --help"
    flags = line.Line((f"+exp={name}",), {"multirun": ""})  # some are sweeps
    settings.compose_line(flags, catalogue(paper, verb))  # which checks every key and value


@pytest.mark.parametrize("path", YAMLS, ids=lambda p: str(p.relative_to(ROOT)))
def test_configs_begin_with_a_comment_and_declare_their_nulls(path):
    assert path.read_text().startswith("#"), "say what this config is"
    for folder in path.parents:
        if folder == ROOT:
            break
        assert (folder / "__init__.py").is_file(), f"{folder} is not a package"
    if path.parent.name == "exp":
        return
    for key, entry in settings.declarations(path).items():
        if entry.default is None:
            assert entry.rule.kind, f"{key}: a null default declares its type, `{key}: null  # str; ...`"


@pytest.mark.parametrize(("paper", "verb"), [*JOBS, ("scripts", "make_stdlib_lm")])
def test_every_number_says_its_range(paper, verb):
    """`n: 10  # >= 2; points`: a value without a range is a value that is not checked."""
    found = catalogue(paper, verb)
    own = [path for name, path in found.files.items() if name == verb or ("/" in name and not name.startswith("exp/"))]
    bare = []
    for path in own:
        declared = settings.declarations(path)
        opens = [key for key, entry in declared.items() if "open" in entry.rule.words]
        for key, entry in declared.items():
            values = entry.default if isinstance(entry.default, list) else [entry.default]
            number = any(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
            free = any(key.startswith(f"{name}.") for name in opens)
            if number and not entry.rule.says_something and not free:
                bare.append(f"{path.name}: {key}")
    assert bare == []


@pytest.mark.parametrize("paper", PAPERS)
def test_claims_are_well_formed_and_judged_somewhere(paper):
    names = {e.name for e in experiments(paper)} | {"default"}
    for claim in claims.read(paper):
        assert set(claim["experiments"]) <= names, claim["id"]
        for need in claim["requires"]:
            name = need.removeprefix("!").partition("@")[0]
            here = name in registry.entries() or name in optional.EXTRAS or name == "stdlib" or optional.installed(name)
            assert here, f"{claim['id']} requires {name}: no data set, extra or package has this name"


COMMAND = re.compile(r"(?:python3? -m|bin/python -m) (papers\.\w+\.\w+|scripts\.\w+)((?: +[^\s#`|&;]+)*)")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "papers").glob("*/README.md")])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_in_documents_exist(path):
    for module, words in COMMAND.findall(path.read_text().replace("\\\n", " ")):
        kind, name, *rest = module.split(".")
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), f"{path}: {module}"
        if kind == "papers":
            given = line.parse_line([w for w in shlex.split(words) if "..." not in w and "<" not in w])
            if given.resume is None:
                found = catalogue(name, rest[0])
                line.check_choices(given, found)
                settings.compose_line(line.chosen_first(given, found), found)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_in_documents_lead_somewhere(path):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(), flags=re.S)  # code is not followed
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:|#", target):
            place = target.partition("#")[0]
            if path.parent == ROOT / "docs" and (chapter := re.match(r"papers/(\w+)/index\.md$", place)):
                place = f"../papers/{chapter[1]}/README.md"  # the site's chapters are made of the folders' own
            assert (path.parent / place).exists(), target


@pytest.mark.parametrize("paper", PAPERS)
def test_help_is_light(paper):
    code = (
        "import sys; sys.argv = ['x']; from common import command, experiment; "
        f"command.main(experiment.find_job('{paper}'), ['--help']); "
        "print([m for m in ('torch', 'pytorch_lightning', 'transformers', 'hydra', 'numpy') if m in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert process.stdout.splitlines()[-1] == "[]", process.stdout + process.stderr


@pytest.mark.parametrize("foreign", ["common", "configs"])
def test_a_foreign_package_in_the_current_folder_is_refused(tmp_path, foreign):
    (tmp_path / foreign).mkdir()
    (tmp_path / foreign / "__init__.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": ""}
    module = subprocess.run(
        [sys.executable, "-m", "papers.quip_sharp.train", "--help"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=60,
    )
    assert module.returncode == 2, module.stderr
    assert foreign in module.stderr
    assert module.stderr.count("\n") == 1
    script = Path(sys.executable).with_name("papers")
    if script.exists():
        assert (
            subprocess.run(
                [script, "run", "quip_sharp", "--help"], capture_output=True, cwd=tmp_path, env=environment, timeout=60
            ).returncode
            == 0
        )


def test_every_job_is_found_by_name():
    for paper, verb in JOBS:
        assert experiment.find_job(paper, verb).paper == paper


def test_the_project_names_no_index_host():
    hosts = (
        "pypi" + ".org",
        "pythonhosted" + ".org",
        "npmjs" + ".com",
        "download.pytorch" + ".org",
        "anaconda" + ".com",
    )
    for path in [*SOURCES, *YAMLS, *DOCUMENTS, ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "constraints.txt"]:
        assert not any(host in path.read_text() for host in hosts), path
