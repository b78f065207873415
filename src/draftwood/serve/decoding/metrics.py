"""Metrics for Prometheus, in vLLM's words where it has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector

from draftwood.serve.decoding.jobs import Draft

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "draftwood:"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
_COUNTERS: Final = {  # by name: the text, and a label
    "prompt_tokens": ("Tokens of prompts.",),
    "prefix_cache_hits": ("Tokens of prompts that were copied from other texts, not read.",),
    "prefix_cache_hit_requests": ("Texts whose beginning was copied from another one.",),
    "generation_tokens": ("Written tokens.",),
    "request_cancelled": ("Texts whose client has gone.",),
    "num_preemptions": ("Pauses of texts that had no memory to go on.",),
    "request_failure": ("Texts that ended with an error.",),
    "spec_decode_num_drafts": ("Drafts, one per text and round with a draft.",),
    "spec_decode_num_draft_tokens": ("Drafted tokens: nodes of trees.",),
    "spec_decode_num_accepted_tokens": ("Accepted drafted tokens.",),
    "request_success": ("Texts that ended.", "finished_reason"),
    "round_failure": ("Rounds that raised an error.", "cause"),
    "spec_decode_num_accepted_tokens_per_pos": ("Drafts that accepted more tokens than this.", "position"),
    "spec_decode_num_accepted_tokens_per_sibling_rank": ("Accepted tokens by place among siblings.", "rank"),
}
_HISTOGRAMS: Final = {
    "time_to_first_token": "Seconds from a request to its first token.",
    "inter_token_latency": "Seconds from token to token.",
    "e2e_request_latency": "Seconds from a request to its last token.",
}
_GAUGES: Final = {
    "num_requests_running": "Texts that are written now.",
    "num_requests_waiting": "Texts that wait.",
    "kv_cache_usage_perc": "Part of the memory for keys and values that is taken, 1 for all.",
}


@final
class _Labelled(Collector):
    """The metrics of a registry, each with the label ``replica``."""

    def __init__(self, registry: CollectorRegistry, replica: str) -> None:
        self._registry, self._replica = registry, replica

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [one._replace(labels={"replica": self._replica, **one.labels}) for one in metric.samples]
            yield metric


@final
class Metrics:
    """All metrics of one server, with the label ``replica`` where there are several."""

    def __init__(self, replica: str | None = None) -> None:
        self._registry = registry = CollectorRegistry()
        self._shown = registry if replica is None else _Labelled(registry, replica)
        self._counters = {
            name: Counter(_PREFIX + name, text, labels, registry=registry) for name, (text, *labels) in _COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"{_PREFIX}{name}_seconds", text, buckets=_SECONDS, registry=registry)
            for name, text in _HISTOGRAMS.items()
        }

    def count(self, name: str, amount: float = 1, *labels: object) -> None:
        """Add to a counter."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(amount)

    def observe(self, name: str, seconds: float) -> None:
        """Add to a histogram."""
        self._histograms[name].observe(seconds)

    def add_draft(self, draft: Draft) -> None:
        """Count one draft."""
        for name, amount in (("drafts", 1), ("draft_tokens", draft.nodes), ("accepted_tokens", len(draft.ranks))):
            self.count(f"spec_decode_num_{name}", amount)
        for position, rank in enumerate(draft.ranks):
            self.count("spec_decode_num_accepted_tokens_per_pos", 1, position)
            self.count("spec_decode_num_accepted_tokens_per_sibling_rank", 1, rank)

    def watch(self, **values: Callable[[], float]) -> None:
        """Add gauges by their names, and what they show."""
        for name, value in values.items():
            Gauge(_PREFIX + name, _GAUGES[name], registry=self._registry).set_function(value)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._shown)
