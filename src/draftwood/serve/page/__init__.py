"""The page at ``/``: a conversation, and the rounds of its answers as they are written."""

from __future__ import annotations

from functools import cache
from typing import Final

from draftwood.trace.page.shell import PARTS, Shell, asset, scripts, style_of_pages

_ROOM: Final = "draftwood.serve.page"
_SCRIPTS: Final = ("live.js", "settings.js", "chat.js", "form.js")


@cache
def page() -> tuple[str, str]:
    """The page, and its policy for the header ``Content-Security-Policy``."""
    shell = Shell(
        title="Draftwood",
        heading="Draftwood",
        without="This page writes texts with the model of this server. It needs JavaScript.",
        element="dw-live",
        script="\n".join([scripts("draftwood.trace.page", PARTS), scripts(_ROOM, _SCRIPTS)]),
        style=style_of_pages() + asset(_ROOM, "live.css"),
        allowed="; connect-src 'self'",
    )
    return shell.html(), shell.policy + "; frame-ancestors 'none'"
