"""Hooks of the documentation site: stored reports become pages of it, and roles in docstrings become code."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

STORED = "benchmarks/results"
_ROLE = re.compile(r":(?:class|func|meth|attr|mod|data|exc):(?=<code>|<a )")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Every stored report is a page, and ``index.md`` lists them."""
    root = Path(config.config_file_path).parent
    names = sorted(path.name for path in (root / STORED).glob("*.md"))
    hidden = InclusionLevel.NOT_IN_NAV
    for name in names:
        path = root / STORED / name
        files.append(File.generated(config, f"{STORED}/{name}", abs_src_path=str(path), inclusion=hidden))
    listing = "# Stored reports\n\n" + "".join(f"* [{name}]({name})\n" for name in names)
    files.append(File.generated(config, f"{STORED}/index.md", content=listing, inclusion=hidden))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links that leave ``docs`` for the stored reports stay inside the site; others name the file of the repository."""
    markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./{STORED}/?\)", rf"](\1{STORED}/index.md)", markdown)
    markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./({STORED}/[^)]+)\)", r"](\1\2)", markdown)
    leaves = r"(?:\.\./)" * (page.file.src_uri.count("/") + 1)
    return re.sub(rf"\[([^\]]+)\]\({leaves}([^)#]+)(?:#[^)]*)?\)", r"\1 (`\2` in the repository)", markdown)


def on_page_content(html: str, **_: object) -> str:
    return _ROLE.sub("", html)
