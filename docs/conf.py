"""The site: chapters, results, notes and the API, by Sphinx with MyST. `make docs` builds it, from disk alone."""

import os
import re
import shutil
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

project = "Nineteen ICML 2024 papers"
author = "the authors of this repository"
extensions = ["myst_parser", "sphinx.ext.mathjax", "sphinx-mathjax-offline", "sphinx.ext.autodoc"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = project
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "member-order": "bysource", "ignore-module-all": True}
autodoc_inherit_docstrings = False


# ---- what Sphinx reads is put together from the clone ----------------------------------------------------------------


def write(path: Path, text: str) -> None:
    """Write a page where it has changed, so that the next build is quick."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def copy_chapters() -> list[str]:
    """Each paper's README and own figures; links to files of the clone that are not pages become plain names."""
    names = []
    for chapter in sorted((ROOT / "papers").glob("*/README.md")):
        names.append(chapter.parent.name)
        text = chapter.read_text().replace("](../../docs/", "](../../")  # pages and recorded figures
        text = re.sub(
            r"(?<!!)\[([^\]]+)\]\((?!https?:|#|figures/|\.\./)[^)]*\)",
            lambda m: m[1] if "`" in m[1] else f"`{m[1]}`",
            text,
        )
        write(DOCS / "papers" / chapter.parent.name / "index.md", text)
        if (chapter.parent / "figures").is_dir():
            shutil.copytree(
                chapter.parent / "figures", DOCS / "papers" / chapter.parent.name / "figures", dirs_exist_ok=True
            )
    return names


def write_api(papers: list[str]) -> None:
    """A page for common/ and for each paper, from the docstrings."""
    for package in ("common", *(f"papers.{name}" for name in papers)):
        folder = ROOT / package.replace(".", "/")
        modules = [
            p.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for p in sorted(folder.rglob("*.py"))
        ]
        modules = [m for m in modules if not m.endswith(("__init__", "__main__"))]
        body = "\n".join(f"## {m}\n\n```{{eval-rst}}\n.. automodule:: {m}\n```\n" for m in modules)
        write(DOCS / "api" / f"{package}.md", f"# {package}\n\n{body}")


for made in ("papers", "api"):
    for stale in (DOCS / made).glob("*"):
        if not (ROOT / "papers" / stale.stem.removeprefix("papers.")).exists() and stale.stem != "common":
            shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
write_api(copy_chapters())


# ---- docstrings are plain text with `code` in them, not reStructuredText -----------------------------------------------


def as_rst(app, what, name, obj, options, lines) -> None:
    """Paragraphs keep their words; code in backticks is set as code; whatever is indented or an example stays as it is."""
    paragraphs = re.split(r"\n[ \t]*\n", "\n".join(lines).strip("\n"))
    lines.clear()
    for paragraph in paragraphs:
        if re.search(r"^(\s+\S|>>>|\|)", paragraph, flags=re.M):
            lines += ["::", "", *(f"    {line}" for line in paragraph.splitlines()), ""]
            continue
        text = ""
        for i, part in enumerate(re.split(r"``?([^`]+)``?", paragraph)):
            # an escaped space lets code begin and end within a word
            escaped = re.sub(r"([*_|\\])", r"\\\1", part)
            text += f"\\ ``{part.strip()}``\\ " if i % 2 else escaped
        lines += [*text.splitlines(), ""]


def setup(app) -> None:
    app.connect("autodoc-process-docstring", as_rst)
