"""The site: chapters, results, notes and the API, by Sphinx with MyST. `make docs` builds it, from disk alone."""

import os
import re
import shutil
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

project = "Nineteen ICML 2024 papers"
html_show_copyright = False
html_show_sphinx = False
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
    """Each paper's README and recorded figures; links to files of the clone that are not pages become plain names."""
    names = []
    for chapter in sorted((ROOT / "papers").glob("*/README.md")):
        paper = chapter.parent.name
        names.append(paper)
        text = chapter.read_text().replace("](../../docs/", "](../../")
        text = re.sub(
            r"(?<!!)\[([^\]]+)\]\((?!https?:|#|record/|\.\./)[^)]*\)",
            lambda m: m[1] if "`" in m[1] else f"`{m[1]}`",
            text,
        )
        write(DOCS / "papers" / paper / "index.md", text)
        figures = DOCS / "papers" / paper / "record" / "figures"
        shutil.rmtree(figures, ignore_errors=True)
        if (chapter.parent / "record" / "figures").is_dir():
            shutil.copytree(chapter.parent / "record" / "figures", figures)
    return names


def as_site(app, docname, source) -> None:
    """Links of a page in docs/ to what lies in papers/ lead to the site's copy of it: a chapter, a recorded figure."""
    up = "../" * docname.count("/")
    text = source[0].replace(f"({up}../papers/", f"({up}papers/")
    source[0] = re.sub(r"(papers/\w+/)README\.md", r"\1index.md", text)


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
    app.connect("source-read", as_site)
    app.connect("autodoc-process-docstring", as_rst)
