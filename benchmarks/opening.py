"""Options of the models of a benchmark, and loading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from draftwood.core.settings import Backend, LoadOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.config import BenchConfig, DTypeName
    from draftwood.api import Pair

INTERRUPTED = 130
"""Exit status after Ctrl-C."""


class Named(Protocol):
    """The options of a benchmark for loading models."""

    @property
    def target(self) -> str | None: ...

    @property
    def draft(self) -> str | None: ...

    @property
    def dtype(self) -> DTypeName: ...

    @property
    def device(self) -> str: ...


def quiet() -> None:
    """Load without output, and let PyTorch use the free cores."""
    from draftwood.hardware.threads import set_threads
    from draftwood.loading.models import quiet_loading

    quiet_loading()
    set_threads(None)


def open_pair(config: Named, backend: Backend, *, profile: str = "none", **more: Any) -> Pair:
    """Load the models, with ``more`` options; a target may be a file of :mod:`benchmarks.files`.

    Raises:
        ConfigError, ModelError, PairingError: as :func:`draftwood.api.load`.
    """
    from benchmarks.files import named_file
    from draftwood.api import load

    quiet()
    options = LoadOptions(dtype=config.dtype, device=config.device, backend=backend, profile=profile, **more)
    return load(named_file(config.target), config.draft, options=options)


def on_backend(pair: Pair, backend: Backend) -> Pair:
    """The same models, run by another backend."""
    from draftwood.api import Pair
    from draftwood.runners.factory import make_runners

    model, draft = pair.model, None if pair.draft is None else pair.draft_model
    return Pair(model, draft, pair.tokenizer, runners=make_runners(model, draft, backend=backend))


def encoder(config: BenchConfig, pair: Pair) -> Callable[[str], list[int]]:
    """What makes token ids of a prompt: the tokenizer, or for messages the target's chat template."""

    def encode_message(text: str) -> list[int]:
        return list(pair.chat_request([{"role": "user", "content": text}]).prompt)

    return encode_message if config.chat else pair.encode


def with_draft(pair: Pair, draft_model: Any) -> Pair:
    """The same target with another draft model, or None, run in the same way."""
    from draftwood.api import Pair
    from draftwood.runners.factory import make_runners

    backend: Any = pair.target.engine.split()[0]
    runners = make_runners(pair.model, draft_model, backend=backend)
    return Pair(pair.model, draft_model, pair.tokenizer, runners=runners)
