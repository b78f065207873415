"""Metrics for Prometheus, in vLLM's words where it has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector

from draftwood.serve.figures import Draft

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "draftwood:"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Counter:
    return Counter(f"{_PREFIX}{name}", text, labels, registry=registry)


@final
class DraftMetrics:
    """Counters of drafting."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, name = partial(_counter, registry), "spec_decode_num_"
        self._drafts = counter(f"{name}drafts", "Drafts, one per text and round with a draft.")
        self._nodes = counter(f"{name}draft_tokens", "Drafted tokens: nodes of trees.")
        self._accepted = counter(f"{name}accepted_tokens", "Accepted drafted tokens.")
        self._positions = counter(
            f"{name}accepted_tokens_per_pos", "Drafts that accepted more tokens than this.", "position"
        )
        self._ranks = counter(f"{name}accepted_tokens_per_sibling_rank", "Accepted tokens by place among siblings.", "rank")

    def add(self, draft: Draft) -> None:
        """Count one draft."""
        self._drafts.inc()
        self._nodes.inc(draft.nodes)
        self._accepted.inc(draft.accepted)
        for position, rank in enumerate(draft.ranks):
            self._positions.labels(position).inc()
            self._ranks.labels(rank).inc()


@final
class PromptMetrics:
    """Counters of prompts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(_counter, registry)
        self._tokens = counter("prompt_tokens", "Tokens of prompts.")
        self._cached = counter("prefix_cache_hits", "Tokens of prompts that were copied from other texts, not read.")
        self._hits = counter("prefix_cache_hit_requests", "Texts whose beginning was copied from another one.")

    def add(self, tokens: int, cached: int) -> None:
        """Count a prompt of so many tokens, of which some were copied."""
        self._tokens.inc(tokens)
        self._cached.inc(cached)
        self._hits.inc(cached > 0)


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
    """All metrics of one server.

    Args:
        replica: the server's id, which labels them; None where there are no others.
    """

    def __init__(self, replica: str | None = None) -> None:
        self._registry = self._shown = registry = CollectorRegistry()
        if replica is not None:
            self._shown = CollectorRegistry()
            self._shown.register(_Labelled(registry, replica))

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"{_PREFIX}{name}_seconds", text, buckets=_SECONDS, registry=registry)

        counter = partial(_counter, registry)
        self.generation_tokens = counter("generation_tokens", "Written tokens.")
        self.ended = counter("request_success", "Texts that ended.", "finished_reason")
        self.cancelled = counter("request_cancelled", "Texts whose client has gone.")
        self.failed = counter("request_failure", "Texts that ended with an error.")
        self.failed_rounds = counter("round_failure", "Rounds that raised an error.", "cause")
        self.first_token = histogram("time_to_first_token", "Seconds from a request to its first token.")
        self.between_tokens = histogram("inter_token_latency", "Seconds from token to token.")
        self.whole = histogram("e2e_request_latency", "Seconds from a request to its last token.")
        self.prompts, self.drafts = PromptMetrics(registry), DraftMetrics(registry)

    def watch(self, running: Callable[[], float], waiting: Callable[[], float], memory: Callable[[], float]) -> None:
        """Add the numbers of texts that are written and that wait, and the part of the memory that is taken."""
        for name, text, value in (
            ("num_requests_running", "Texts that are written now.", running),
            ("num_requests_waiting", "Texts that wait.", waiting),
            ("kv_cache_usage_perc", "Part of the memory for keys and values that is taken, 1 for all.", memory),
        ):
            Gauge(f"{_PREFIX}{name}", text, registry=self._registry).set_function(value)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._shown)
