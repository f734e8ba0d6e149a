"""Attack the command line as a determined user would, and count: `python -m tests.attack [--quick]` (nightly; see docs/design.md).

Command lines of every paper, odd environments, edited records, kills of runs and of sweeps. Nothing may end in a
traceback, in an exit code that its case does not allow, or in a result that an undisturbed run would not have.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from common import cli, settings
from common.catalogue import catalogue, papers, verbs
from common.files import ROOT
from tests.common import toy

TOY = [sys.executable, "-m", "tests.common.toy"]
USER = {2}


class Tally:
    """What was tried and what went wrong."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self.wrong: list[str] = []

    def judge(self, kind: str, case: str, code: int, allowed: set[int], errors: str) -> None:
        self.tried[kind] += 1
        if code not in allowed or "Traceback" in errors or "this is a bug" in errors:
            last = errors.strip().splitlines()[-1:] or [""]
            self.wrong.append(f"{kind}: {case}: exit {code}, allowed {sorted(allowed)}: {last[0][:160]}")

    def lost(self, kind: str, case: str, what: str) -> None:
        self.wrong.append(f"{kind}: {case}: {what}")


# ---- command lines ---------------------------------------------------------------------------------------------------


def lines(rng: random.Random) -> Iterator[tuple[list[str], set[int]]]:
    """Command lines and the exit codes that each may have."""
    for paper in papers():
        for verb in verbs(paper):
            found = catalogue(paper, verb)
            head = ["run", paper, verb]
            yield [*head, "--help"], {0}
            for experiment in found.experiments:
                yield [*head, f"+exp={experiment.name}", "--cfg", "job"], {0, 2}  # 2: a sweep, which needs -m
            for key, entry in settings.declarations(found.files[verb]).items():
                if isinstance(entry.default, dict):
                    yield [*head, f"{key}=3", "--cfg", "job"], USER
                    yield [*head, f"+{key}.zz=3", "--cfg", "job"], USER
                    continue
                if isinstance(entry.default, bool):
                    yield [*head, f"{key}=maybe", "--cfg", "job"], USER
                elif isinstance(entry.default, (int, float)):
                    yield [*head, f"{key}=many", "--cfg", "job"], USER
                    for op, bound in entry.rule.bounds:
                        bad = {">=": bound - 1, ">": bound, "<=": bound + 1, "<": bound}[op]
                        if abs(bad) != float("inf"):
                            whole = isinstance(entry.default, int)
                            yield [*head, f"{key}={int(bad) if whole else bad}", "--cfg", "job"], USER
                elif isinstance(entry.default, list):
                    yield [*head, f"{key}=7", "--cfg", "job"], USER
                elif entry.rule.choices:
                    yield [*head, f"{key}=zzz", "--cfg", "job"], USER
                yield [*head, f"{key}x=1", "--cfg", "job"], USER
    alphabet = "abz019=,+-~.:@$&{}[]()\"'\\ \t/*?!%#<>|;é\u200b"
    for _ in range(200):
        word = "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 24)))
        yield ["run", "window_ann", word, "--cfg", "job"], {0, 2}
    odd = ["seed=range(0)", "seed=range(0,1e12)", "seed=interval(0,1)", "seed=glob(*)", "exp=glob(zz*)", "seed=1,1", "seed=0,abc",
           "hydra.sweep.dir=/tmp", "hydra.sweeper.params={seed:'0,1'}", "launcher=slurm", "hydra.launcher.n_jobs=2", "resume=x",
           "+exp@_global_=ci", "seed=choice()", "seed=sort(3,2,x)", "seed=shuffle(range(1e9))", "threads=0", "stop_at_first_failure=1",
           "seed=" + "9" * 400, "seed=${seed}", "seed=${nothing}", "seed=${oc.env:NOTHING}", "label=" + "a" * 9000]  # fmt: skip
    for text in odd:
        yield ["run", "toy", text], {0, 2}
        yield ["run", "toy", "-m", text, "steps=2"], {0, 2}


def attack_lines(tally: Tally, rng: random.Random, most: int | None) -> None:
    cases = list(lines(rng))
    if most is not None:
        cases = rng.sample(cases, min(most, len(cases)))
    for argv, allowed in cases:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = cli.main(argv)
            except SystemExit as error:
                code = int(error.code or 0)
        tally.judge("command line", " ".join(argv)[:160], code, allowed, err.getvalue())


# ---- environments ----------------------------------------------------------------------------------------------------


def environments(folder: Path) -> Iterator[tuple[str, dict[str, str | None], str]]:
    """A name, variables (None: not set), and a shell prefix."""
    (folder / "file").write_text("")
    for name, values in {
        "MPLBACKEND": ["nonsense", "", "TkAgg", "module://x"], "RANK": ["1", "x", "-1"], "LOCAL_RANK": ["1"], "SLURM_PROCID": ["2"],
        "PAPERS_RUNS": ["/dev/null/x", "/proc/x", str(folder / "file"), "", "~", "a" * 3000, "ü x'y"], "PAPERS_CACHE": [str(folder / "file"), "", "/proc/x"],
        "PAPERS_DATA": ["", ":::", "/nowhere", str(folder / "file"), "~:."], "HOME": [None, "", "/nowhere", str(folder / "file")],
        "TMPDIR": ["/nowhere", ""], "LANG": ["C", "xx_YY"], "LC_ALL": ["C"], "PYTHONIOENCODING": ["ascii", "latin-1"], "COLUMNS": ["1", "abc", "20", "0"],
        "OMP_NUM_THREADS": ["0", "-1", "x"], "NUMBA_NUM_THREADS": ["1"], "TERM": ["dumb", ""], "NO_COLOR": ["1"], "PATH": ["", "/nowhere"],
        "PYTHONWARNINGS": ["error::DeprecationWarning"], "HYDRA_FULL_ERROR": ["1"], "CUDA_VISIBLE_DEVICES": ["", "7"], "PYTHONDONTWRITEBYTECODE": ["1"],
        "USER": [None], "SHELL": [None], "XDG_CACHE_HOME": ["/nowhere"], "PAPERS_JOBS": ["x"],
    }.items():  # fmt: skip
        for value in values:
            yield f"{name}={value!r}"[:60], {name: value}, ""
    for prefix in (
        "ulimit -n 24;",
        "exec <&-;",
        "exec >&-;",
        "exec 2>&-;",
        "exec >&- 2>&- <&-;",
        "exec 2>/dev/full;",
        "exec >/dev/full;",
    ):
        yield prefix, {}, prefix
    gone = folder / "gone"
    yield "current folder deleted", {}, f"mkdir -p {gone}; cd {gone}; rmdir {gone};"


def attack_environments(tally: Tally, folder: Path, most: int | None) -> None:
    for number, (name, values, prefix) in enumerate(list(environments(folder))[:most]):
        runs = folder / f"env{number}"
        environment = {**os.environ, "PAPERS_RUNS": str(runs), "PYTHONPATH": str(ROOT)}
        for key, value in values.items():
            environment.pop(key, None) if value is None else environment.update({key: value})
        shell = f"{prefix} exec {sys.executable} -m tests.common.toy run toy +exp=smoke steps=3 threads=1"
        work = folder / f"cwd{number}"
        work.mkdir()
        process = subprocess.run(
            ["/bin/bash", "-c", shell], env=environment, cwd=work, capture_output=True, text=True, timeout=120,
            errors="replace",
        )  # fmt: skip
        tally.judge("environment", name, process.returncode, {0, 2}, process.stderr)


# ---- records ---------------------------------------------------------------------------------------------------------


def attack_records(tally: Tally, folder: Path, most: int | None) -> None:
    """Edited records and stages: one sentence, or computed again to the same result."""
    whole = folder / "record"
    run_toy(f"paths.runs={whole}", "steps=5")
    done = next((whole / "toy" / "default").glob("2*"))
    record = json.loads((done / "result.json").read_text())
    edits: list[tuple[str, dict | None, tuple[str, bytes] | None]] = []
    for name in record:
        for value in ("x", 3, None, [1], {"a": [1]}, -1.5):
            edits.append((f"{name}={value!r}", {**record, "status": "running", name: value}, None))
        edits.append((f"without {name}", {k: v for k, v in {**record, "status": "running"}.items() if k != name}, None))
    stage = next((done / "stages").glob("data-*")).name
    for content in (
        b"",
        b"3",
        b'{"dict":[["value",1]]}',
        b'{"dict":[["value",1],["events",{"list":[{"tuple":["log",3]}]}]]}',
        b"\xff" * 50,
    ):
        edits.append((f"stage {content[:20]!r}", {**record, "status": "running"}, (f"stages/{stage}", content)))
    for content in (b"", b"[1", b"\xff\xfe", b"[]", b"null", b'{"schema": 1}', b'{"schema": 2}', b"[" * 100_000):
        edits.append((f"result.json {content[:12]!r}", None, ("result.json", content)))
    for number, (name, changed, file) in enumerate(edits[:most] if most else edits):
        copy = folder / f"copy{number}"
        shutil.copytree(done, copy)
        if changed is not None:
            (copy / "result.json").write_text(json.dumps(changed))
        if file is not None:
            (copy / file[0]).write_bytes(file[1])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(["run", "toy", f"resume={copy}"])
        tally.judge("record", name, code, {0, 2}, err.getvalue())
        with contextlib.suppress(OSError, ValueError, KeyError):
            after = json.loads((copy / "result.json").read_text())
            if (
                code == 0
                and name.split("=")[0] not in ("metrics", "tables", "seed")
                and after["metrics"] != record["metrics"]
            ):
                tally.lost("record", name, "resumed to other metrics")
        shutil.rmtree(copy)
    fifo = folder / "fifo"
    fifo.mkdir()
    os.mkfifo(fifo / "result.json")
    process = subprocess.run(
        [*TOY, "run", "toy", f"resume={fifo}"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    tally.judge("record", "a fifo", process.returncode, USER, process.stderr)


def run_toy(*words: str) -> None:
    subprocess.run([*TOY, "run", "toy", *words, "threads=1"], cwd=ROOT, check=True, capture_output=True, timeout=120)


# ---- kills -----------------------------------------------------------------------------------------------------------


def attack_kills(tally: Tally, folder: Path, rng: random.Random, runs: int, sweeps: int) -> None:
    """Signals at random moments; what is gone on with must end as an undisturbed run does, to the last bit."""
    words = ["steps=30", "sleep=0.02", "threads=1"]
    run_toy(*words, f"paths.runs={folder / 'whole'}")
    whole = json.loads(next((folder / "whole" / "toy" / "default").glob("2*/result.json")).read_text())
    for number in range(runs):
        parent = folder / f"kill{number}"
        how = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        process = subprocess.Popen([*TOY, "run", "toy", *words, f"paths.runs={parent}"], cwd=ROOT, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        time.sleep(rng.uniform(0.05, 4.0))
        process.send_signal(how)
        _, errors = process.communicate(timeout=60)
        asked = {signal.SIGKILL: {-9}, signal.SIGTERM: {143, -15}, signal.SIGINT: {130, -2}}[how]
        tally.judge("kill of a run", f"{how.name} {number}", process.returncode, asked | {0}, errors)
        for left in parent.glob("toy/default/2*/result.json"):
            again = subprocess.run(
                [*TOY, "run", "toy", f"resume={left.parent}"], cwd=ROOT, capture_output=True, text=True, timeout=120
            )
            tally.judge("resume of a run", f"{how.name} {number}", again.returncode, {0}, again.stderr)
            after = json.loads(left.read_text())
            if (after["metrics"], after["tables"]) != (whole["metrics"], whole["tables"]):
                tally.lost("resume of a run", f"{how.name} {number}", "another result")
    if not sweeps:
        return
    swept = ["-m", "seed=0,1,2", "steps=15", "sleep=0.02", "threads=1"]
    run_toy(*swept, f"paths.runs={folder / 'swept'}")
    means = json.loads(next((folder / "swept" / "toy" / "default").glob("sweep-*/sweep.json")).read_text())["metrics"]
    for number in range(sweeps):
        parent = folder / f"sweep{number}"
        how = rng.choice([signal.SIGKILL, signal.SIGTERM])
        process = subprocess.Popen([*TOY, "run", "toy", *swept, f"paths.runs={parent}"], cwd=ROOT, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        time.sleep(rng.uniform(0.3, 6.0))
        process.send_signal(how)
        _, errors = process.communicate(timeout=60)
        asked = {signal.SIGKILL: {-9}, signal.SIGTERM: {143, -15}}[how]
        tally.judge("kill of a sweep", f"{how.name} {number}", process.returncode, asked | {0}, errors)
        for left in parent.glob("toy/default/sweep-*/sweep.json"):
            again = subprocess.run(
                [*TOY, "run", "toy", f"resume={left.parent}"], cwd=ROOT, capture_output=True, text=True, timeout=180
            )
            tally.judge("resume of a sweep", f"{how.name} {number}", again.returncode, {0}, again.stderr)
            if json.loads(left.read_text())["metrics"] != means:
                tally.lost("resume of a sweep", f"{how.name} {number}", "another result")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a sample of each kind, a minute or so")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, tally = random.Random(arguments.seed), Tally()
    toy.attach()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ |= {
            "PAPERS_RUNS": str(folder / "runs"),
            "PAPERS_CACHE": str(folder / "cache"),
            "WANDB_MODE": "offline",
        }
        os.environ.pop("PAPERS_DATA", None)
        attack_lines(tally, rng, 60 if arguments.quick else None)
        attack_environments(tally, folder, 6 if arguments.quick else None)
        attack_records(tally, folder, 20 if arguments.quick else None)
        attack_kills(tally, folder, rng, *((4, 1) if arguments.quick else (50, 20)))
    for kind, count in tally.tried.items():
        print(f"{count:5} x {kind}")
    for text in tally.wrong:
        print(f"WRONG {text}")
    print(f"{sum(tally.tried.values())} tried, {len(tally.wrong)} wrong")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
