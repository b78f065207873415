"""How a pair is loaded and by which library it is run: decided once, before weights are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, final

import torch

from draftwood.core.draft_kind import CAUSAL, HIDDEN_BLOCK, MASKED_BLOCK, MTP, SEQ2SEQ, DraftKind
from draftwood.core.errors import PairingError
from draftwood.core.settings import LoadOptions
from draftwood.loading.checkpoint import has_head
from draftwood.loading.gguf_header import header_of
from draftwood.loading.models import (
    choose_device,
    choose_dtype,
    class_of,
    is_encoder_decoder,
    load_tokenizer,
    raw_config,
    token_difference,
)
from draftwood.loading.published_configs import published_format
from draftwood.runners.backends import EngineChoice, choose_engine
from draftwood.runners.native.families import FAMILIES
from draftwood.runners.native.refusals import is_mxfp4
from draftwood.runners.native.weights import FLOATS
from draftwood.runners.shared_tokens import SharedTokens


@final
@dataclass(frozen=True)
class Plan:
    """What is decided of a pair by its options, its files and this machine.

    Attributes:
        target, draft, options: as given.
        kind, draft_kind: what both are; no kind without a draft.
        device, dtype: of the weights.
        engine: the library that runs them.
        shared: the tokens of both, where a draft model has another tokenizer.
    """

    target: str | Path
    draft: str | Path | None
    options: LoadOptions
    kind: DraftKind
    draft_kind: DraftKind | None
    device: torch.device
    dtype: torch.dtype
    engine: EngineChoice
    shared: SharedTokens | None = None

    def for_tokens(self, tokenizer: Any) -> Self:
        """The plan with what the target's tokenizer and the draft's decide.

        Raises:
            ModelError: the draft's tokenizer cannot be loaded.
            PairingError: the draft has another tokenizer, and no token of the target's, or the target has an encoder.
        """
        if self.draft_kind is None or self.draft_kind.reads_hidden:
            return self
        class_of(self.draft_kind)  # transformers knows the configuration of one of ours once its class is imported
        draft, target, name = load_tokenizer(str(self.draft), self.options), str(self.target), str(self.draft)
        if (unlike := token_difference(tokenizer, draft)) is None:
            return self
        if self.kind.reads_source:
            raise PairingError(f"{name!r} cannot draft for {target!r}: {unlike}. Take two models with the same tokenizer")
        shared = SharedTokens(tokenizer, draft, (target, name))
        return replace(self, draft_kind=shared.kind, shared=shared)


def plan_for(target: str | Path, draft: str | Path | None, options: LoadOptions) -> Plan:
    """The plan of a pair.

    Raises:
        ConfigError: options that are impossible here, or with each other.
        ModelError: no configuration was found, or its type is unknown; or a published drafter of a kind that is not run.
    """
    device = choose_device(options.device)
    kind, dtype = SEQ2SEQ if is_encoder_decoder(target, options) else CAUSAL, choose_dtype(options.dtype, device)
    if options.device_map is not None:
        engine = EngineChoice(names=("torch",), named="the target is divided")
    else:
        stated = kind is CAUSAL and header_of(target) is None
        model_type = raw_config(target, options).get("model_type") if stated else None
        kept = None if options.dtype == "auto" else dtype
        own: dict[str, Any] = {"backend": options.backend, "weights": options.weights}
        engine = choose_engine(device, kind, **own, model_type=model_type, dtype=kept)
    if engine.reads_files and options.dtype == "auto" and (options.weights != "same" or _has_codes(target, options)):
        dtype = torch.bfloat16  # the native engine computes from codes
    drafts = None if draft is None else _kind_of(draft, target, options, kind)
    return Plan(target, draft, options, kind, drafts, device, dtype, engine)


def _kind_of(name: str | Path, target: str | Path, options: LoadOptions, kind: DraftKind) -> DraftKind:
    """What the files of a draft say that it is, for a target of a kind."""
    if Path(name) == Path(target) and has_head(name):
        return MTP
    config = raw_config(name, options)
    trained = {one.name: one for one in (MASKED_BLOCK, HIDDEN_BLOCK)}  # whose folders this package writes
    found = trained.get(str(config.get("model_type")))
    if found is None and kind is CAUSAL and (form := published_format(config)) is not None:
        found = form.kind
    if found is not None and found.reads_source == kind.reads_source:
        return found
    return SEQ2SEQ if kind is SEQ2SEQ and is_encoder_decoder(name, options) else CAUSAL


def _has_codes(name: str | Path, options: LoadOptions) -> bool:
    """Whether a model has codes that the native engine computes from."""
    if (header := header_of(name)) is not None:
        return any(tensor.kind not in FLOATS for tensor in header.tensors)
    raw = raw_config(name, options)
    own = FAMILIES.get(raw.get("model_type", ""))
    return own is not None and own.alternating and is_mxfp4(raw.get("quantization_config"))
