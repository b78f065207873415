"""Metrics for Prometheus, in vLLM's words where it has them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Final, TypeVar, final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from draftwood.serve.decoding.jobs import Draft

M = TypeVar("M", Counter, Gauge, Histogram)
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "draftwood:"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
_COUNTERS: Final = {  # by name: the text, and a label
    "model_loads": ("How often the model was loaded.",),
    "prompt_tokens": ("Tokens of prompts.",),
    "prefix_cache_hits": ("Tokens of prompts that were copied from other texts, not read.",),
    "prefix_cache_hit_requests": ("Texts whose beginning was copied from another one.",),
    "prefix_cache_restored": ("Tokens of texts that were read from the cache folder.",),
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
    "model_loaded": "1 while the model is in memory.",
    "kv_cache_usage_perc": "Part of the memory for keys and values that is taken, 1 for all.",
}


@final
class Metrics:
    """All metrics of one model. They outlive its stays in memory.

    Args:
        names: of the labels that distinguish it from others of the same registry, whose metrics :meth:`of` makes.
    """

    def __init__(self, *names: str) -> None:
        self.registry = registry = CollectorRegistry()
        self._values: tuple[str, ...] = ()
        self._counters = {
            name: Counter(_PREFIX + name, text, [*names, *labels], registry=registry)
            for name, (text, *labels) in _COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"{_PREFIX}{name}_seconds", text, names, buckets=_SECONDS, registry=registry)
            for name, text in _HISTOGRAMS.items()
        }
        self._gauges = {name: Gauge(_PREFIX + name, text, names, registry=registry) for name, text in _GAUGES.items()}

    def of(self, *values: str) -> Metrics:
        """Those with these values of the labels; they show 0 from now on."""
        found = copy(self)
        found._values = values
        found.watch()
        for histogram in self._histograms.values():
            found._own(histogram)
        for name in (name for name, (_, *labels) in _COUNTERS.items() if not labels):
            found.count(name, 0)
        return found

    def _own(self, metric: M, *labels: object) -> M:
        values = (*self._values, *labels)
        return metric.labels(*values) if values else metric

    def count(self, name: str, amount: float = 1, *labels: object) -> None:
        self._own(self._counters[name], *labels).inc(amount)

    def observe(self, name: str, seconds: float) -> None:
        self._own(self._histograms[name]).observe(seconds)

    def add_draft(self, draft: Draft) -> None:
        for name, amount in (("drafts", 1), ("draft_tokens", draft.nodes), ("accepted_tokens", len(draft.ranks))):
            self.count(f"spec_decode_num_{name}", amount)
        for position, rank in enumerate(draft.ranks):
            self.count("spec_decode_num_accepted_tokens_per_pos", 1, position)
            self.count("spec_decode_num_accepted_tokens_per_sibling_rank", 1, rank)

    def watch(self, **values: Callable[[], float]) -> None:
        """What gauges show, by their names; those that are not named show 0, and hold nothing."""
        for name, gauge in self._gauges.items():
            self._own(gauge).set_function(values.get(name, float))


def render(metrics: Metrics) -> bytes:
    """The text that Prometheus reads, of all metrics of a registry."""
    return generate_latest(metrics.registry)
