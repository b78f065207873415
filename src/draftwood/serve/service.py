"""What the routes share: the pair, its scheduler, and the server's own facts."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, Final, final

from draftwood import __version__
from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.history import History
from draftwood.core.token_logprobs import TokenLogprob
from draftwood.core.token_texts import TokenTexts
from draftwood.engine.arguments import MethodLike
from draftwood.engine.decode import recorder_of
from draftwood.engine.logprobs import of_prompt
from draftwood.engine.pipeline import PLAIN
from draftwood.engine.prefix_folder import PrefixFolder
from draftwood.loading.profile import bits_keys
from draftwood.runners.native.memory import StoresTexts
from draftwood.runners.native.stored import weight_sizes
from draftwood.serve.decoding.metrics import Metrics
from draftwood.serve.decoding.rows import GIB, Admission
from draftwood.serve.decoding.scheduler import Scheduler
from draftwood.serve.http.settings import ServeOptions
from draftwood.serve.openai.answers import Answer, LiveTrace
from draftwood.serve.openai.prepare import Preparation
from draftwood.serve.openai.sampling import most_nodes
from draftwood.trace.settings import TraceSettings

_LOG = logging.getLogger(__name__)
MAX_ROUNDS: Final = 200
"""Rounds of a trace that are kept, the first ones."""


@final
class Service:
    """One model and what serves it. Its decoder is one for sampling, which writes texts at temperature 0 too.

    Args:
        name: of the model where the options have none.
        metrics: that it counts in; None for new ones.

    Attributes:
        names: of the model in the interface, the usual one first.
        metrics: what is counted of its texts.
        scheduler: writes texts; the caller starts and stops it.

    Raises:
        ConfigError: a method for temperature 0 only; what the decoder refuses.
    """

    def __init__(
        self, pair: Pair, options: ServeOptions, *, name: str, method: MethodLike | None = None,
        metrics: Metrics | None = None,
    ) -> None:  # fmt: skip
        pair.special_tokens_in_content = options.special_tokens_in_content
        chosen = pair.method(method, temperature=1.0)
        decoder = pair.decoder(chosen, temperature=1.0)
        verifier = decoder.pipeline.verifier
        if verifier.greedy_only or not verifier.lossless:
            raise ConfigError(
                f"verifier {verifier.name!r} is for temperature 0 only, but requests bring their own temperatures: "
                "use --verifier auto"
            )
        admission = Admission(pair, options.max_rows, options.max_memory)
        self.pair, self.options = pair, options
        self.names = tuple(dict.fromkeys(options.name)) or (name,)
        self._method, self.texts = chosen, TokenTexts(pair.tokenizer)
        self.metrics = Metrics() if metrics is None else metrics
        if admission.budget is not None:
            decoder.prefixes.memory = admission.budget
        decoder.prefixes.least, decoder.prefixes.kept = 0, int(options.prefix_memory * GIB)
        decoder.prefixes.folder = _folder_of(pair, options)
        reuse = not options.no_prefix_cache
        decoder.prefixes.history = None if options.history == "none" else History()
        self.scheduler = Scheduler(decoder, admission, queue=options.max_queue, metrics=self.metrics, reuse=reuse)
        self._decoder = decoder
        self.preparation = Preparation(
            pair, options, chosen, decoder.pipeline.grammars, most=self.scheduler.room, longest=admission.longest
        )

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What is known of the model and of this server, in llama.cpp's words. ``size`` is that of the weights, in bytes."""
        model, sampling, most = self.pair.model, self.pair.sampling, self.preparation.max_length
        weights = list(weight_sizes(model))
        settings = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        return {
            "max_model_len": most, "chat_template": self.preparation.chats, "nodes": most_nodes(self._method),
            "methods": list(dict.fromkeys([self._method.method, PLAIN])),
            "meta": {
                "architecture": model.config.model_type, "dtype": str(model.dtype).removeprefix("torch."),
                "n_vocab": self.pair.target.vocab_size, "n_ctx_train": self.pair.target.max_length,
                "n_params": sum(count for count, _ in weights), "size": sum(size for _, size in weights),
            },
            "default_generation_settings": {"n_ctx": most, "params": {name: getattr(sampling, name) for name in settings}},
            "total_slots": self.options.max_rows,
            "modalities": {"vision": False, "audio": False},
            "build_info": f"draftwood {__version__}",
        }  # fmt: skip

    async def score(self, answer: Answer) -> None:
        """Find the log-probabilities that its echoes want, those of equal prompts once; raises an ApiError if that fails."""
        known: dict[tuple[int, ...], tuple[TokenLogprob, ...]] = {}
        for job in answer.jobs:
            wanted, prompt = job.request.logprobs, tuple(job.request.prompt)
            if job.echo is None or wanted is None:
                continue
            if prompt not in known:
                parts = self.scheduler.work(of_prompt(self.pair.target.another(), prompt, wanted.top))
                made = await asyncio.wrap_future(parts)
                known[prompt] = tuple(chain.from_iterable(made))
            job.echo = replace(job.echo, logprobs=known[prompt])

    def trace(self, answer: Answer) -> None:
        """Have the text of an answer recorded while it is written."""
        [job], method, draft = answer.jobs, self._method, self.pair.draft
        if job.method == PLAIN:
            method, draft = replace(method, method="ar", shape=None, nodes=None), None
        job.recorder = recorder_of(
            self._decoder, [job.request], job.sampling, method=method, draft=draft, kept=TraceSettings(rounds=MAX_ROUNDS)
        )
        [trace] = job.recorder.traces()
        answer.trace = LiveTrace(trace, grows=True)


def _folder_of(pair: Pair, options: ServeOptions) -> PrefixFolder | None:
    """Where texts of a pair go that leave the memory; None, with a warning, where they cannot. Raises a ConfigError."""
    if options.cache_dir is None:
        return None
    key, why = pair.known.profile_key, f"keys and values of {pair.target.engine} are not written to files"
    if isinstance(pair.target, StoresTexts):
        with suppress(OSError):
            if key is not None:
                return PrefixFolder(
                    options.cache_dir / "prefixes", int(options.cache_size * GIB), pair.target, bits_keys(key)
                )
        why = "the model's files, by which texts are found again, are not there"
    _LOG.warning("--cache-dir keeps nothing: %s", why)
    return None
