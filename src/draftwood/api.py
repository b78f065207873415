"""Loading a pair of models and generating text with it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from draftwood.core.arguments import Array, LimitsLike, Prompt, Singles, prompt_of, tokenized
from draftwood.core.checks import settings
from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.limits import Limits
from draftwood.core.machine import set_threads
from draftwood.core.seeds import drawn
from draftwood.core.settings import LoadOptions, Sampling
from draftwood.engine.requests import Request
from draftwood.engine.session import Session, check_parts
from draftwood.loading.checkpoint import check_path
from draftwood.loading.generation import own_sampling, remarks
from draftwood.loading.models import (
    check_tokenizers,
    choose_device,
    choose_dtype,
    is_encoder_decoder,
    load_model,
    load_tokenizer,
    named_or_bundled,
    openvino_place,
)
from draftwood.loading.profile import Profile, ProfileKey, find, profile_key_of
from draftwood.runners.factory import Runners, make_runners
from draftwood.runners.protocols import ModelRunner
from draftwood.runners.support import check_window

_LOG = logging.getLogger(__name__)


def load(
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    options: LoadOptions | Mapping[str, Any] | None = None,
) -> Pair:
    """Load a target and, optionally, a draft model: hub names or local folders, safetensors only.

    Without a target the bundled language pair is loaded. The profile that ``draftwood tune`` measured for the pair on this
    machine is used, unless ``options.profile`` says otherwise. OpenVINO runs compiled copies of models
    (:func:`draftwood.runners.factory.make_runners` says when): take ``options.backend`` ``torch`` to train
    ``pair.target.model`` further.

    Raises:
        ConfigError: an unknown option, device or dtype, a draft without a target, a named profile that does not match.
        ModelError: a model or tokenizer that cannot be loaded, or a model that cannot score a tree.
        PairingError: two models with different tokens.
    """
    options = LoadOptions() if options is None else settings("options", options, LoadOptions)
    target, draft = named_or_bundled("language", target, draft)
    for name in (target, draft):
        if name is not None:
            check_path(name)
    if options.threads is not None:
        set_threads(options.threads)
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    tokenizer = load_tokenizer(target, options)
    if is_encoder_decoder(target, options):
        raise ModelError(f"{str(target)!r} is an encoder-decoder model: use draftwood translate, or load_translator")
    model = load_model(target, options, device, dtype)
    draft_model = None
    if draft is not None:
        draft_model = load_model(draft, options, device, dtype)
        check_tokenizers(tokenizer, load_tokenizer(draft, options), str(target), str(draft))
    place = openvino_place(options.device)
    runners = make_runners(model, draft_model, backend=options.backend, weights=options.weights, place=place)
    profile_key = profile_key_of(target, draft, dtype, device, runners.target.engine)
    pair = Pair(
        model, draft_model, tokenizer, profile_key=profile_key, profile=find(options.profile, profile_key), runners=runners
    )
    for remark in pair.remarks:
        _LOG.warning("%s", remark)
    return pair


@final
class Pair(Session):
    """A target model, its draft model and their tokenizer, ready to generate.

    A call uses ``self.sampling`` by default. Its distribution is that of ``model.generate`` under the target's generation
    config: greedy decoding without ``do_sample``. The length and stop strings of texts are set by the limits.

    Args:
        model: the target, a ``transformers`` causal language model.
        draft_model: the draft model, or None.
        tokenizer: the tokenizer of both.
        profile_key: identifies matching profiles, where the models' files are known.
        profile: the methods that were measured as fastest; method ``auto`` uses it.
        runners: runners of both models; by default PyTorch runs the models, which may be trained further between calls.

    Attributes:
        target, draft: their runners.
        fallback: why backend ``auto`` is PyTorch for this pair; None if it is OpenVINO or a backend was named.
        remarks: settings of the target's generation config that are not part of a sampling, such as stop strings.

    Raises:
        ConfigError: a model, tokenizer or profile of another type.
        ModelError: a model that cannot score a tree.
    """

    _argument = _item = "prompt"

    def __init__(
        self,
        model: Any,
        draft_model: Any,
        tokenizer: Any,
        *,
        profile_key: ProfileKey | None = None,
        profile: Profile | None = None,
        runners: Runners | None = None,
    ) -> None:
        check_parts(model, draft_model, tokenizer)
        self.target, self.draft, self.fallback = runners or make_runners(model, draft_model, backend="torch")
        super().__init__(model, self.target, self.draft, tokenizer, profile_key=profile_key, profile=profile)
        self.limits = Limits()
        self.remarks = remarks(model)

    def __repr__(self) -> str:
        def described(runner: ModelRunner | None) -> str:
            if runner is None:
                return "None"
            size = sum(p.numel() for p in runner.model.parameters()) / 1e6
            kind, dtype = type(runner.model).__name__, str(runner.model.dtype)[6:]
            return f"<{kind}, {size:.1f} M, {dtype} on {runner.device} by {runner.engine}>"

        return f"Pair(target={described(self.target)}, draft={described(self.draft)})"

    def encode(self, prompt: Prompt | Array) -> list[int]:
        """Token ids of a text; given token ids are unchanged. An empty prompt becomes the beginning-of-text token.

        A text that already begins with this token, as chat templates write it, does not get another one.

        Raises:
            ConfigError: an empty prompt without a beginning-of-text token, or neither text nor token ids.
        """
        given = prompt_of("prompt", prompt)
        ids = tokenized(self.tokenizer, given) if isinstance(given, str) else given
        if not ids and self.tokenizer.bos_token_id is not None:
            ids = [int(self.tokenizer.bos_token_id)]
        if not ids:
            raise ConfigError("the prompt is empty and the tokenizer has no beginning-of-text token: give some text")
        return ids

    def request(self, ids: Sequence[int], limits: LimitsLike | None = None, seed: int | None = None) -> Request:
        """A request for an encoded prompt; a seed of None is drawn.

        Raises:
            CacheError: prompt and ``max_new_tokens`` do not fit the target's sliding window.
        """
        wanted = Singles().limits(limits, self.limits)
        check_window(self.target.model, len(ids) + wanted.max_new_tokens)
        return Request(prompt=ids, seed=drawn(seed), limits=wanted, final=self.final_token)

    def _sampling_with(self, given: Mapping[str, Any]) -> Sampling:
        return own_sampling(self.target.model, self.eos, given)
