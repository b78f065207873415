"""Draftwood's methods as systems: one target model for all of them, a separate runner and cache for each drafter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, final

from benchmarks.translate.config import TranslateConfig
from benchmarks.translate.systems import Output, System
from draftwood.core.errors import PairingError
from draftwood.core.settings import LoadOptions, Method
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import BLOCK, build
from draftwood.loading.checkpoint import check_path
from draftwood.loading.models import load_model
from draftwood.runners.blocks.heads import HeadsDrafter
from draftwood.runners.factory import make_translation_runners
from draftwood.runners.protocols import BlockRunner
from draftwood.runners.seq2seq.layer_skip import decoder_layer_count
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


def our_systems(config: TranslateConfig, translator: Translator, max_new_tokens: int, skipped: Any) -> Iterator[System]:
    """The chosen methods.

    Args:
        skipped: the target with fewer decoder layers, for layer skip.

    Raises:
        ModelError: heads that cannot be loaded.
        PairingError: a drafter that fills no blocks, or was made for another target.
    """
    model, tokenizer = translator.model, translator.tokenizer

    def system(name: str, its: Translator, method: Method) -> System:
        made = Ours(its, method, max_new_tokens)
        return System(name=name, translate=made, ours=True, greedy=made.lossless)

    def with_draft(draft: Any) -> Translator:
        runners = make_translation_runners(model, draft, backend=config.backend)
        return Translator(model, draft, tokenizer, runners=runners)

    names = config.method_names()
    if "ar" in names:
        yield system("ar", translator, Method(method="ar"))
    if "ngram" in names:
        length = str(config.ngram_length)
        yield system(f"ngram {length}", translator, Method(method="ngram", shape=length))
    if "layer-skip" in names:
        method = Method(method="chain", shape=str(config.skip_length))
        yield system(f"layer-skip {config.skip_length}", with_draft(skipped), method)
    if "heads" in names:
        heads = _heads(config, model)
        length = str(heads.config.block)
        yield system(f"heads {length}", with_draft(heads), Method(method="block", shape=length))
    if "block" in names:
        for k in config.block_lengths() or (_block(translator),):
            for beta, tau in config.tolerances():
                yield system(f"block {k}, beta {beta}, tau {tau:g}", translator, _method(k, beta, tau))
    if "tree" in names:
        _block(translator)  # fills blocks, or is refused
        for nodes in config.nodes or (None,):
            yield system(f"tree {nodes or 'as it pays'}", translator, Method(method="shared-noise", nodes=nodes))


def kept_layers(config: TranslateConfig, model: Any) -> list[int]:
    """Decoder layers that layer skip keeps: what was chosen, else all but the first and the last, if there are others."""
    chosen, count = config.kept_layers(), decoder_layer_count(model)
    return list(chosen) if chosen is not None else list(range(1, count - 1)) or [count - 1]


def _heads(config: TranslateConfig, model: Any) -> Any:
    if config.heads is None:
        raise PairingError("method 'heads' needs heads that were trained for the target: give --heads")
    check_path(config.heads)
    return load_model(config.heads, LoadOptions(), model.device, model.dtype, HeadsDrafter)


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
