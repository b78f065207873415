"""The HTML around a page's element: one style sheet, one script, and a policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib.resources import files
from string import Template
from typing import Final, final

from draftwood.trace.figures.canvas import style

PARTS: Final = ("source.js", "parts.js", "page.js")
"""The scripts that show recorded texts."""


@final
@dataclass(frozen=True)
class Shell:
    """A page of one element.

    Attributes:
        without: the sentence for browsers without JavaScript.
        allowed: what the policy allows in addition, as for the header ``Content-Security-Policy``.
    """

    title: str
    heading: str
    without: str
    element: str
    script: str
    style: str
    allowed: str

    @cached_property
    def policy(self) -> str:
        """The page's policy: its own script, its own style sheet, and what is allowed in addition."""
        ours = f"default-src 'none'; script-src '{_digest(self.script)}'; style-src '{_digest(self.style)}'"
        return f"{ours}; img-src data:; base-uri 'none'; form-action 'none'{self.allowed}"

    def html(self, data: str = "") -> str:
        """The page; ``data`` is markup before the script."""
        return Template(asset("draftwood.trace.page", "page.html")).substitute(
            policy=escape(self.policy), title=escape(self.title), heading=escape(self.heading), without=escape(self.without),
            element=self.element, style=self.style, script=self.script, data=data,
        )  # fmt: skip


def scripts(room: str, names: Sequence[str]) -> str:
    """Scripts of a room's folder as one."""
    return "\n".join(asset(room, name) for name in names)


def style_of_pages() -> str:
    """The style sheet of recorded texts and figures."""
    return asset("draftwood.trace.page", "page.css") + style()


def asset(room: str, name: str) -> str:
    """A file in the folder of a room."""
    return files(room).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
