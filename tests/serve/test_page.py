"""The snippets of docs/serve.md run against a server, and its tables name what there is."""

from __future__ import annotations

import re

import draftwood
from draftwood.serve.schemas import ChatBody, CompletionBody
from draftwood.serve.service import Service
from draftwood.serve.settings import ServeOptions
from tests.serve.conftest import live_server
from tests.test_docs import ROOT, run

PAGE = ROOT / "docs" / "serve.md"


def test_the_snippets_of_the_page_print_what_is_shown() -> None:
    service = Service.of(draftwood.load(), ServeOptions(), name="draftwood")
    with live_server(service) as live:
        run(PAGE, lambda source: source.replace("8000", str(live.port)))


def test_the_page_names_every_field_and_every_metric() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = {name for name in {*ChatBody.model_fields, *CompletionBody.model_fields} if f"`{name}" not in text}
    assert not missing
    service = Service.of(draftwood.load(), ServeOptions(), name="draftwood")
    names = set(re.findall(r"^# HELP draftwood:(\w+)", service.metrics.render().decode(), re.MULTILINE))
    assert not {name for name in names if name.removesuffix("_created") == name and name not in text}
