"""Loading a pair of models and generating text with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final, overload

from draftwood.checkpoint import check_path
from draftwood.checks import several
from draftwood.decode import Decoder, Piece, Request, Result
from draftwood.decoders import Decoders, drawn, seeds_for
from draftwood.errors import ConfigError, ModelError
from draftwood.loading import (
    LoadOptions,
    check_tokenizers,
    choose_device,
    choose_dtype,
    eos_of,
    is_encoder_decoder,
    load_model,
    load_tokenizer,
    named_or_bundled,
    openvino_place,
    sampling_of,
)
from draftwood.methods import Method
from draftwood.models import ModelRunner
from draftwood.models.backend import Runners, make_runners
from draftwood.output import Limits
from draftwood.profile import Profile, Subject, find, subject_of
from draftwood.sampling import Sampling


def load(
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    options: LoadOptions | None = None,
) -> Pair:
    """Load a target and, optionally, a draft model: hub names or local folders, safetensors only.

    Without a target the bundled language pair is loaded. What ``draftwood tune`` found out about the pair on this machine is
    used, unless ``options.profile`` says otherwise. Models that OpenVINO runs (:func:`draftwood.models.backend.make_runners`
    says when) are compiled copies: whoever trains ``pair.target.model`` on wants ``options.backend`` ``torch``.

    Raises:
        ConfigError: an unknown device or dtype, a draft without a target, a profile that was named and does not fit.
        ModelError: a model or tokenizer that cannot be loaded or cannot score a tree.
        PairingError: two models that do not speak the same tokens.
    """
    options = options or LoadOptions()
    target, draft = named_or_bundled("language", target, draft)
    for name in (target, draft):
        if name is not None:
            check_path(name)
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
    subject = subject_of(target, draft, dtype, device, runners.target.engine)
    return Pair(model, draft_model, tokenizer, subject=subject, profile=find(options.profile, subject), runners=runners)


@final
class Pair:
    """A target model, its draft model and their tokenizer, ready to generate.

    Without a ``sampling`` of its own a call uses ``self.sampling``, which the target's generation config asks for.

    Args:
        model: the target, a ``transformers`` causal language model.
        draft_model: the draft model, or None.
        tokenizer: the tokenizer of both.
        subject: what a profile has to be measured for, where the models' files are known.
        profile: what was found to be fastest; method ``auto`` takes it.
        runners: runners of both models; without them PyTorch runs the models, which may be trained on meanwhile.

    Attributes:
        target, draft: their runners.
        fallback: why backend ``auto`` is PyTorch for this pair; None where it is OpenVINO, or a backend was named.

    Raises:
        ModelError: a model that cannot score a tree.
    """

    def __init__(
        self,
        model: Any,
        draft_model: Any,
        tokenizer: Any,
        *,
        subject: Subject | None = None,
        profile: Profile | None = None,
        runners: Runners | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.subject = subject
        self.profile = profile
        self.target, self.draft, self.fallback = runners or make_runners(model, draft_model, backend="torch")
        self.eos = eos_of(model, tokenizer, self.target.vocab_size)
        self._decoders = Decoders(self.target, self.draft, tokenizer=tokenizer, eos=self.eos)
        self.sampling = sampling_of(model)

    def __repr__(self) -> str:
        def told(runner: ModelRunner | None) -> str:
            if runner is None:
                return "None"
            size = sum(p.numel() for p in runner.model.parameters()) / 1e6
            kind, dtype = type(runner.model).__name__, str(runner.model.dtype)[6:]
            return f"<{kind}, {size:.1f} M, {dtype} on {runner.device} by {runner.engine}>"

        return f"Pair(target={told(self.target)}, draft={told(self.draft)})"

    def method(self, method: Method | None = None, *, temperature: float = 1.0) -> Method:
        """What is drafted and how it is verified at a temperature, every ``auto`` replaced.

        Where nothing at all is asked for, the profile decides, if there is one, for the whole text.
        """
        method = method or Method()
        if method == Method() and self.profile is not None:
            method = self.profile.choose(temperature)
        return self._decoders.resolve(method, greedy=temperature == 0)

    def decoder(self, method: Method | None = None, *, temperature: float = 1.0) -> Decoder:
        """A decoder for token ids, for texts of this temperature; the pair's models serve one stream at a time.

        Decoders of the same method share what their drafter has learnt about the pair and the machine.
        """
        return self._decoders.of(self.method(method, temperature=temperature), greedy=temperature == 0)

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Token ids of a prompt; an empty text becomes the beginning-of-text token if there is one.

        Raises:
            ConfigError: an empty prompt for a tokenizer without a beginning-of-text token.
        """
        ids = list(self.tokenizer(prompt)["input_ids"]) if isinstance(prompt, str) else list(prompt)
        if not ids and self.tokenizer.bos_token_id is not None:
            ids = [int(self.tokenizer.bos_token_id)]
        if not ids:
            raise ConfigError("the prompt is empty and the tokenizer has no beginning-of-text token: give some text")
        return ids

    def requests(
        self, prompts: Sequence[str | Sequence[int]], limits: Limits | None, seeds: Sequence[int | None]
    ) -> list[Request]:
        """Encoded requests; a seed that is None is drawn."""
        return [
            Request(prompt=self.encode(prompt), seed=drawn(seed), limits=limits or Limits())
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]

    def stream(
        self,
        prompt: str,
        *,
        method: Method | None = None,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
    ) -> Iterator[Piece]:
        """One prompt, round by round; raises what :meth:`Decoder.stream` raises."""
        sampling = sampling or self.sampling
        decoder = self.decoder(method, temperature=sampling.temperature)
        for pieces in decoder.stream(self.requests([prompt], limits, [seed]), sampling):
            yield from pieces

    @overload
    def generate(  # type: ignore[overload-overlap]  # to the type checker a str is a sequence of str
        self,
        prompt: str,
        *,
        method: Method | None = None,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
    ) -> Result: ...

    @overload
    def generate(
        self,
        prompt: Sequence[str],
        *,
        method: Method | None = None,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        seed: int | Sequence[int] | None = None,
    ) -> list[Result]: ...

    def generate(
        self,
        prompt: str | Sequence[str],
        *,
        method: Method | None = None,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        seed: int | Sequence[int] | None = None,
    ) -> Result | list[Result]:
        """One prompt, or several at once; with several, one seed counts up from row to row.

        Raises:
            ConfigError: as many seeds as prompts are wanted; else what :meth:`Decoder.stream` raises.
        """
        single = isinstance(prompt, str)
        prompts = [prompt] if isinstance(prompt, str) else list(several("prompt", prompt, str, "texts"))
        seeds = seeds_for(len(prompts), seed, "prompts")
        sampling = sampling or self.sampling
        decoder = self.decoder(method, temperature=sampling.temperature)
        results = decoder.generate(self.requests(prompts, limits, seeds), sampling)
        return results[0] if single else results
