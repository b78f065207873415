"""The pages: at ``/`` a conversation, and the rounds of its answers as they are written; at ``/docs`` the routes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from jinja2 import Environment

from draftwood.trace.page.shell import PARTS, Shell, asset, scripts, style_of_pages

DOCS_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Of the page of routes, for the header ``Content-Security-Policy``."""
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


def docs(document: Mapping[str, Any]) -> str:
    """The OpenAPI document as tables, without scripts and other hosts."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(asset(_ROOM, "docs.html")).render(document=document)
