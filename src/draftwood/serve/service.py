"""What the routes share: the pair, its scheduler, and the server's own facts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import final

from draftwood.api import Pair
from draftwood.core.checks import short_repr
from draftwood.core.errors import ConfigError
from draftwood.core.token_logprobs import TokenLogprob
from draftwood.core.token_texts import TokenTexts
from draftwood.engine.arguments import MethodLike
from draftwood.engine.logprobs import of_prompt
from draftwood.serve.admission import Admission
from draftwood.serve.echoes import Echo
from draftwood.serve.errors import ApiError
from draftwood.serve.metrics import Metrics
from draftwood.serve.prepare import Preparation
from draftwood.serve.scheduler import Scheduler
from draftwood.serve.settings import ServeOptions
from draftwood.serve.traces import Traces


@final
@dataclass(frozen=True, kw_only=True)
class Service:
    """One model and what serves it.

    Attributes:
        names: of the model in the interface, the usual one first.
        options: of the server.
        pair: the models.
        texts: the texts of single tokens.
        preparation: makes requests.
        scheduler: writes texts; the caller starts and stops it.
        metrics: what happened.
        traces: of the texts that want one.
        created: when the server began, in seconds since 1970.
    """

    names: tuple[str, ...]
    options: ServeOptions
    pair: Pair
    texts: TokenTexts
    preparation: Preparation
    scheduler: Scheduler
    metrics: Metrics
    traces: Traces
    created: int = field(default_factory=lambda: int(time.time()))

    @staticmethod
    def of(pair: Pair, options: ServeOptions, *, name: str, method: MethodLike | None = None) -> Service:
        """The service of a pair. Its decoder is one for sampling, which writes texts at temperature 0 too.

        ``name`` is that of the model where the options have none.

        Raises:
            ConfigError: a method for temperature 0 only; what the decoder refuses.
        """
        pair.special_tokens_in_content = options.special_tokens_in_content
        chosen, metrics = pair.method(method, temperature=1.0), Metrics()
        decoder = pair.decoder(chosen, temperature=1.0)
        verifier = decoder.pipeline.verifier
        if verifier.greedy_only or not verifier.lossless:
            raise ConfigError(
                f"verifier {verifier.name!r} is for temperature 0 only, but requests bring their own temperatures: "
                "use --verifier auto"
            )
        rows, queue = options.max_rows, options.max_queue
        admission = Admission.of(pair, rows, options.max_memory)
        scheduler = Scheduler(decoder, rows=rows, queue=queue, metrics=metrics, admission=admission)
        most = rows + queue
        preparation = Preparation(pair, chosen, decoder.pipeline.grammars, most=most, max_length=options.max_length)
        traces = Traces(decoder, chosen, pair.draft, most=options.max_traces)
        return Service(
            names=tuple(dict.fromkeys(options.name)) or (name,),
            options=options,
            pair=pair,
            texts=TokenTexts(pair.tokenizer),
            preparation=preparation,
            scheduler=scheduler,
            metrics=metrics,
            traces=traces,
        )

    async def scored(self, echoes: Sequence[Echo]) -> list[Echo]:
        """The echoes with the log-probabilities that they want. Equal prompts are scored once.

        Raises:
            ApiError: a model that fails, or a server that has stopped.
        """
        known: dict[tuple[int, ...], list[TokenLogprob]] = {}
        found = []
        for echo in echoes:
            wanted, prompt = echo.request.logprobs, tuple(echo.request.prompt)
            if wanted is not None and prompt not in known:
                parts = self.scheduler.work(of_prompt(self.pair.target.another(), prompt, wanted.top))
                made = await asyncio.wrap_future(parts)
                known[prompt] = list(chain.from_iterable(made))
            found.append(replace(echo, logprobs=known.get(prompt)))
        return found

    def name(self, wanted: str | None) -> str:
        """The model's name in an answer: the wanted one, if it is one of its names, else the usual one.

        Raises:
            ApiError: another model is wanted, and the server has no ``any_model``.
        """
        if wanted in self.names:
            return wanted
        if wanted is not None and not self.options.any_model:
            raise ApiError(
                404,
                f"the model {short_repr(wanted)} is not here: this server has {', '.join(map(short_repr, self.names))}; "
                "send its name, or none, or start the server with --any-model",
                param="model",
                code="model_not_found",
            )
        return self.names[0]
