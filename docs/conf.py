"""The site: README, chapters, results and notes, by Sphinx with MyST. `make docs` builds it, from disk alone."""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = ROOT / "docs" / "papers"

project = "Nineteen ICML 2024 papers"
author = "the authors of this repository"
extensions = ["myst_parser", "sphinx.ext.mathjax", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = project
html_static_path: list[str] = []


def copy_chapters() -> None:
    """Put each paper's README and figures where Sphinx reads; links to code become links to the clone's files by name."""
    shutil.rmtree(CHAPTERS, ignore_errors=True)
    for chapter in sorted((ROOT / "papers").glob("*/README.md")):
        name = chapter.parent.name
        target = CHAPTERS / name
        target.mkdir(parents=True)
        text = chapter.read_text()
        text = re.sub(r"\[([^\]]+)\]\((?!https?:|#|figures/)[^)]*?\.(?:py|yaml)[^)]*\)", r"`\1`", text)
        (target / "index.md").write_text(text)
        if (chapter.parent / "figures").is_dir():
            shutil.copytree(chapter.parent / "figures", target / "figures")


copy_chapters()
