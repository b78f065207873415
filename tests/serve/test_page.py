"""The snippets of docs/serve.md run against a server, and its tables name what there is."""

from __future__ import annotations

import json
import re

import pytest

import draftwood
from draftwood.serve.metrics import Metrics
from draftwood.serve.other_fields import OTHER_FIELDS
from draftwood.serve.schemas import ChatBody, CompletionBody, StreamOptions, TokenizeBody
from draftwood.serve.service import Service
from draftwood.serve.settings import ServeOptions
from tests.serve.conftest import live_server
from tests.test_docs import ROOT, run

PAGE = ROOT / "docs" / "serve.md"


def test_the_snippets_of_the_page_print_what_is_shown() -> None:
    service = Service(draftwood.load(), ServeOptions(), name="draftwood")
    with live_server(service) as live:
        run(PAGE, lambda source: source.replace("8000", str(live.port)))


@pytest.fixture(scope="module")
def metrics() -> str:
    """The metrics of a new server."""
    return Metrics().render().decode()


def test_the_page_names_every_field_and_every_metric(metrics: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    bodies = (ChatBody, CompletionBody, TokenizeBody)
    known = {name for body in bodies for name in body.model_fields} | OTHER_FIELDS.keys()
    known |= {f"stream_options.{name}" for name in StreamOptions.model_fields}
    assert not {name for name in known if f"`{name}`" not in text}
    names = set(re.findall(r"^# HELP draftwood:(\w+)", metrics, re.MULTILINE))
    assert len(names) > 12
    assert not {name for name in names if not name.endswith("_created") and name not in text}


def test_the_dashboard_asks_for_metrics_that_there_are(metrics: str) -> None:
    dashboard = json.loads((ROOT / "examples" / "serve" / "grafana.json").read_text())
    wanted = re.findall(r"draftwood:(\w+)", json.dumps(dashboard["panels"]))
    gauges = {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"}  # made by the scheduler
    known = set(re.findall(r"^# TYPE draftwood:(\w+)", metrics, re.MULTILINE)) | gauges
    assert len(set(wanted)) > 12
    assert {name.removesuffix("_bucket") for name in wanted} <= known
