"""Draftwood's methods as systems: one target model for all of them, a separate runner and cache for each drafter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

from benchmarks.translate.config import TranslateConfig
from benchmarks.translate.systems import Output, System
from draftwood.core.errors import PairingError
from draftwood.core.settings import Method
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import BLOCK, build
from draftwood.runners.protocols import BlockRunner
from draftwood.translation import Translator


@final
class Ours:
    """One method, from token ids to token ids, like the other systems.

    Args:
        translator: the target and, if the method needs one, its drafter.
        method: what is drafted and how it is verified.
        max_new_tokens: the longest translation.
    """

    def __init__(self, translator: Translator, method: Method, max_new_tokens: int) -> None:
        drafter, verifier = build(method, translator.draft, greedy=True)
        self.lossless = verifier.lossless
        self._translator = translator
        self._decoder = Decoder(translator.target, drafter, verifier, eos=translator.eos)
        self._limits = replace(translator.limits, max_new_tokens=max_new_tokens)

    def __call__(self, sources: Sequence[Sequence[int]]) -> Output:
        translator, decoder = self._translator, self._decoder
        draft = decoder.pipeline.drafter.runner
        before = 0.0 if draft is None else draft.forward_seconds, translator.target.forward_seconds
        requests = [translator.request(source, self._limits, seed=0) for source in sources]
        results = decoder.generate(requests, translator.sampling)
        forced = list(translator.prompt[1:])
        return Output(
            tokens=[forced + result.token_ids for result in results],
            passes=sum(result.stats.rounds for result in results),
            seconds={
                "draft": 0.0 if draft is None else draft.forward_seconds - before[0],
                "target": translator.target.forward_seconds - before[1],
                "verify": sum(result.stats.seconds["verify"] for result in results),
            },
        )


def our_systems(config: TranslateConfig, translator: Translator, max_new_tokens: int) -> Iterator[System]:
    """The chosen methods; raises a PairingError if one needs a drafter that fills blocks, and the draft is none."""

    def system(name: str, method: Method) -> System:
        made = Ours(translator, method, max_new_tokens)
        return System(name=name, translate=made, ours=True, greedy=made.lossless)

    names = config.method_names()
    if "ar" in names:
        yield system("ar", Method(method="ar"))
    if "block" in names:
        for k in config.k or (_block(translator),):
            for beta, tau in config.tolerances():
                yield system(f"block {k}, beta {beta}, tau {tau:g}", _method(k, beta, tau))
    if "tree" in names:
        _block(translator)  # fills blocks, or is refused
        for nodes in config.nodes or (None,):
            yield system(f"tree {nodes or 'as it pays'}", Method(method="shared-noise", nodes=nodes))


def _block(translator: Translator) -> int:
    if not isinstance(translator.draft, BlockRunner):
        raise PairingError(
            f"a drafter that fills whole blocks is needed, but the draft is a {type(translator.draft).__name__}: "
            "give a folder made by 'draftwood train spec-drafter'"
        )
    return min(BLOCK, translator.draft.block)


def _method(k: int, beta: int, tau: float) -> Method:
    """Where only the best token is kept, plain greedy verification is the same and has less to compute."""
    if beta == 1 or tau == 0:
        return Method(method="block", shape=str(k))
    return Method(method="block", shape=str(k), beta=beta, tau=tau)
