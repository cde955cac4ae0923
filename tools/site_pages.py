"""What mkdocs does besides when it builds the site from docs/ (``hooks`` in mkdocs.yml; ``make docs``).

Pages that lie outside docs/ are part of the site under ``project/``. Links to them lead there; links to other files of
the repository, which the site does not have, become plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
OUTSIDE: Final = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "csrc/README.md": "project/kernels.md",
    "csrc/cuda/README.md": "project/cuda-kernels.md",
    "benchmarks/README.md": "project/benchmarks.md",
}
"""Pages outside docs/, and where they are in the site."""
_SOURCES: Final = {there: here for here, there in OUTSIDE.items()}
_LINK: Final = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"( *)(```)")
_ITEM_INDENT: Final = 4


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name headings as GitHub does, so that a link holds in both."""
    from pymdownx.slugs import slugify

    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    from mkdocs.structure.files import File

    for here, there in OUTSIDE.items():
        files.append(File.generated(config, there, content=(ROOT / here).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn a page's links into links of the site, and its lists into lists as Python-Markdown reads them."""
    place = page.file.src_uri
    return deeper(linked_in_site(markdown, place, _SOURCES.get(place)))


def linked_in_site(markdown: str, place: str, source: str | None = None) -> str:
    """``markdown`` with links that hold in the site. place: the page there. source: its file, where not in docs/."""
    folder = posixpath.dirname(source or posixpath.join("docs", place))

    def changed(link: re.Match[str]) -> str:
        text, target = link.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return link[0]
        aim = posixpath.normpath(posixpath.join(folder, path))
        there = OUTSIDE.get(aim) or (aim.removeprefix("docs/") if aim.startswith("docs/") else None)
        if there is None:
            return text
        relative = posixpath.relpath(there, posixpath.dirname(place) or ".")
        return f"[{text}]({relative}{'#' + anchor if anchor else ''})"

    return _LINK.sub(changed, markdown)


def deeper(markdown: str) -> str:
    """``markdown`` with what belongs to an item of a list indented by four columns; GitHub takes two or three."""
    lines, shift, fence = [], "", ""
    for line in markdown.split("\n"):
        opened = _FENCE.match(line)
        if fence:
            lines.append(shift + line if line else line)
            if opened and opened[2] == fence:
                shift, fence = "", ""
        elif opened:
            shift, fence = _lacking(opened[1]), opened[2]
            lines.append(shift + line)
        else:
            lines.append(_lacking(line[: len(line) - len(line.lstrip(" "))]) + line)
    return "\n".join(lines)


def _lacking(indent: str) -> str:
    return " " * (_ITEM_INDENT - len(indent)) if len(indent) in (2, 3) else ""
