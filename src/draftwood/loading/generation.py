"""What the generation config of a model asks of its texts, honoured as ``model.generate`` of ``transformers`` does.

Of an encoder-decoder model that is the text of ``num_beams=1, do_sample=False``, and what draft trees cannot honour is said
in words. Of a causal language model it is the distribution of ``generate``, and what cannot be honoured is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

from transformers.generation import logits_process as hf

from draftwood.core.checks import settings as check_settings
from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.limits import Limits
from draftwood.core.processors import ByPrompt
from draftwood.core.settings import Sampling
from draftwood.loading.checkpoint import naming_the_config

_START = 1  # tokens that the decoder reads before anything is written
_TOP_K = 50  # of a config that samples and names none
_REMARKS: Mapping[str, tuple[Any, str]] = {
    "num_return_sequences": (1, "there is one text per prompt"),
    "stop_strings": (None, "give them as stop strings of the limits"),
    "max_time": (None, "only a number of tokens limits a text here"),
}
_LEFT_OUT: Mapping[str, tuple[Any, str]] = {
    "num_beams": (1, "this decodes greedily, as with num_beams=1"),
    "do_sample": (False, "this decodes greedily unless a sampling is given"),
    "num_return_sequences": (1, "there is one text per sentence"),
    "penalty_alpha": (0, "contrastive search is not done here"),
    "dola_layers": (None, "layers of the model are not contrasted here"),
    "guidance_scale": (1, "a prompt cannot guide a draft tree"),
    "encoder_repetition_penalty": (1.0, "it is bound to the rows of one batch"),
    "encoder_no_repeat_ngram_size": (0, "it is bound to the rows of one batch"),
    "watermarking_config": (None, "texts are not watermarked here"),
    **{name: _REMARKS[name] for name in ("stop_strings", "max_time")},
}
_BEAMS = (None, "beam search keeps several texts at once")
_BY_GIVEN_TEMPERATURE: Mapping[str, tuple[Any, str]] = {  # refused, unless a temperature says how a text is written
    "num_beams": (1, _BEAMS[1]),
    "constraints": _BEAMS,
    "force_words_ids": _BEAMS,
    "penalty_alpha": (0, "contrastive search is not done here"),
    "dola_layers": (None, "layers of the model are not contrasted here"),
}
_BOUND = "it is bound to the rows of one batch"
_REFUSED: Mapping[str, tuple[Any, str]] = {
    "guidance_scale": (1, "a second prompt cannot guide a draft tree"),
    "encoder_repetition_penalty": (1.0, _BOUND),
    "encoder_no_repeat_ngram_size": (0, _BOUND),
    "watermarking_config": (None, "texts are not watermarked here"),
    "token_healing": (False, "prompts are not rewritten here"),
    "top_h": (None, "this truncation, between temperature and top-k, is not done here"),
}
_DRAWN = ("temperature", "top_k", "top_p", "min_p")
_WARPERS: Mapping[str, Callable[[float, Any], Any]] = {  # in the order of ``generate``; neutral outside of 0 to 1
    "typical_p": lambda value, _: hf.TypicalLogitsWarper(mass=value),
    "epsilon_cutoff": lambda value, _: hf.EpsilonLogitsWarper(epsilon=value),
    "eta_cutoff": lambda value, device: hf.EtaLogitsWarper(epsilon=value, device=device),
}
_SHOWN = 60  # characters of a setting's value in a remark


@final
@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a model asks of its texts.

    Attributes:
        prompt: what the decoder begins with: the start token, and the one that is forced to come first (a language).
        sampling: greedy decoding under everything that changes the scores.
        limits: how long a text may become, counted as ``max_new_tokens`` of ``generate``: all tokens after the start token.
        final: the token that a text ends with where the limits end it.
        remarks: what is asked and not honoured, in sentences.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    limits: Limits
    final: int | None
    remarks: tuple[str, ...]


def asked(model: Any, eos: list[int], longest: int | None) -> Asked:
    """What an encoder-decoder model asks of its texts.

    Args:
        eos: its end-of-text tokens.
        longest: most tokens that its decoder can read, None if unlimited.

    Raises:
        ModelError: nothing says what the decoder begins with.
    """
    settings = _settings(model)
    forced = settings.pop("forced_bos_token_id", None)
    prompt = (_start_token(model), *(() if forced is None else (int(forced),)))
    text = _Text(eos=eos, start=_START, begin=len(prompt), device=model.device)
    return Asked(
        prompt=prompt,
        sampling=Sampling(
            temperature=0.0,
            repetition_penalty=_penalty(settings),
            logit_bias=dict.fromkeys(_forbidden(settings, eos), -float("inf")) or None,
            processors=[_PROCESSORS[name](value, text) for name, value in _processed(settings, eos).items()] or None,
        ),
        limits=Limits(max_new_tokens=_most(settings, longest)),
        final=final_token(model),
        remarks=tuple(f"the model's generation config says {told}" for told in _found(settings, _LEFT_OUT)),
    )


def own_sampling(model: Any, eos: list[int], given: Mapping[str, Any] | None = None) -> Sampling:
    """How a causal language model draws its tokens in ``model.generate``: greedily unless ``do_sample`` says otherwise.

    Args:
        eos: its end-of-text tokens.
        given: settings of a :class:`Sampling` that take the place of the model's own, by name; biases and processors join
            them. A temperature also decides whether anything is drawn. If so, what the config says of truncation counts, and
            the ``top_k`` of 50 that ``generate`` has by default only where the config says ``do_sample``.

    Raises:
        ConfigError: a setting that cannot be honoured, or a given truncation of the most likely text; it is named.
    """
    check_settings("given", given or {}, Sampling)
    own, given = _settings(model), dict(given or {})
    with naming_the_config():
        return _own(model, eos, own, given)


def _own(model: Any, eos: list[int], own: Mapping[str, Any], given: dict[str, Any]) -> Sampling:
    drawn = given["temperature"] != 0 if "temperature" in given else own.get("do_sample") is True
    _refuse(own, given, drawn=drawn)
    settings = {"top_k": _TOP_K, **own} if own.get("do_sample") is True else own
    settings = {**settings, **{name: given.pop(name) for name in (*_DRAWN, "repetition_penalty") if name in given}}
    vocab = int(model.get_output_embeddings().weight.shape[0])
    forbidden = [token for token in _forbidden(settings, eos) if 0 <= token < vocab]  # generate passes over others too
    bias = {**(given.pop("logit_bias", None) or {}), **dict.fromkeys(forbidden, -float("inf"))}
    processors = [*_behind_prompts(settings, eos, model.device), *(given.pop("processors", None) or ())]
    warpers = [make(settings[n], model.device) for n, make in _WARPERS.items() if drawn and 0 < settings.get(n, 0) < 1]
    cut = {name: settings[name] for name in _DRAWN if name in settings} if drawn else {"temperature": 0.0}
    return Sampling(
        **cut,
        repetition_penalty=_penalty(settings),
        logit_bias=bias or None,
        processors=processors or None,
        warpers=[*warpers, *(given.pop("warpers", None) or ())] or None,
        **given,
    )


def _refuse(own: Mapping[str, Any], given: Mapping[str, Any], *, drawn: bool) -> None:
    tables: list[tuple[Mapping[str, tuple[Any, str]], str]] = [(_REFUSED, "")]
    if "temperature" not in given:
        tables.append((_BY_GIVEN_TEMPERATURE, "a temperature (0 for the most likely text), or "))
    idle = () if drawn else ("top_h",)
    for table, advice in tables:
        for told in _found({name: value for name, value in own.items() if name not in idle}, table):
            raise ConfigError(
                f"the target's generation config says {told}; give {advice}a Sampling of your own, or take it out of "
                "generation_config.json"
            )
    forced = own.get("forced_eos_token_id")
    if drawn and isinstance(forced, list) and len(forced) > 1:
        raise ConfigError(
            f"the target's generation config says forced_eos_token_id={forced}, of which generate draws one: give a "
            "Sampling of your own, or leave one token there"
        )
    if not drawn:
        refuse_idle(given, "the target's generation config does not say do_sample")


def refuse_idle(given: Mapping[str, Any], why: str) -> None:
    """Refuse settings that only change what is drawn, where nothing is.

    Args:
        given: settings by name; a temperature makes all of them count, or is 0 on purpose.
        why: nothing is drawn.

    Raises:
        ConfigError: names the setting.
    """
    if "temperature" not in given and (idle := [name for name in _DRAWN if name in given]):
        raise ConfigError(f"{idle[0]} was given, but {why}, and the most likely text stays the same: give a temperature too")


def remarks(model: Any) -> tuple[str, ...]:
    """What a causal language model asks and no :class:`Sampling` can say, in sentences."""
    return tuple(f"the model's generation config says {told}" for told in _found(_settings(model), _REMARKS))


def final_token(model: Any) -> int | None:
    """The token that a text ends with where its limits end it (``forced_eos_token_id``), None if any may.

    Raises:
        ModelError: no number of a token that the model knows.
    """
    forced = _settings(model).get("forced_eos_token_id")
    several: list[Any] = forced if isinstance(forced, list) else [forced]
    if forced is None:
        return None
    vocab = int(model.get_output_embeddings().weight.shape[0])
    if not several or not all(isinstance(token, int) and 0 <= token < vocab for token in several):
        raise ModelError(
            f"the target's generation config says forced_eos_token_id={forced!r}, but the target knows tokens 0 to "
            f"{vocab - 1}: correct it"
        )
    found: int = min(several)  # of equal scores the first is taken
    return found


def _settings(model: Any) -> dict[str, Any]:
    """What the generation config says, without what it leaves open."""
    config = getattr(model, "generation_config", None)
    return {} if config is None else {name: value for name, value in config.to_diff_dict().items() if value is not None}


def _found(settings: Mapping[str, Any], table: Mapping[str, tuple[Any, str]]) -> Iterable[str]:
    """Settings of a table that are not neutral, and what is to be said of them."""
    for name, (neutral, what) in table.items():
        if settings.get(name) not in (None, neutral):
            yield f"{name}={str(settings[name])[:_SHOWN]}: {what}"


def _start_token(model: Any) -> int:
    config = model.generation_config
    for found in (config.decoder_start_token_id, config.bos_token_id, getattr(model.config, "decoder_start_token_id", None)):
        if isinstance(found, int):
            return found
    raise ModelError(
        "the target's generation config has no decoder_start_token_id, so nothing says what its texts begin with: add it to "
        "generation_config.json"
    )


def _most(settings: Mapping[str, Any], longest: int | None) -> int:
    """The longest text in tokens: what the generation config says, else the model's positions, else the usual limit."""
    if settings.get("max_new_tokens") is not None:
        return int(settings["max_new_tokens"])
    length = settings.get("max_length") or longest
    return max(1, int(length) - _START) if length else Limits().max_new_tokens


def _forbidden(settings: Mapping[str, Any], eos: list[int]) -> list[int]:
    """Tokens that must never come."""
    words = [word[0] for word in settings.get("bad_words_ids") or () if len(word) == 1]
    return [*(token for token in words if token not in eos), *(settings.get("suppress_tokens") or ())]


def _penalty(settings: Mapping[str, Any]) -> float:
    """A repetition penalty comes behind a bias of sequences; then it is a processor too."""
    return 1.0 if settings.get("sequence_bias") else float(settings.get("repetition_penalty", 1.0))


@final
@dataclass(frozen=True, kw_only=True)
class _Text:
    """Where processors count from: ``start`` tokens before anything is written, ``begin`` before anything is chosen."""

    eos: list[int]
    start: int
    begin: int
    device: Any


_PROCESSORS: Mapping[str, Callable[[Any, _Text], Any]] = {  # in the order of ``generate``
    "sequence_bias": lambda value, _: hf.SequenceBiasLogitsProcessor(sequence_bias=value),
    "repetition_penalty": lambda value, _: hf.RepetitionPenaltyLogitsProcessor(value),
    "no_repeat_ngram_size": lambda value, _: hf.NoRepeatNGramLogitsProcessor(value),
    "bad_words_ids": lambda value, text: hf.NoBadWordsLogitsProcessor(value, text.eos or None),
    "min_length": lambda value, text: hf.MinLengthLogitsProcessor(value, text.eos, device=text.device),
    "min_new_tokens": lambda value, text: hf.MinNewTokensLengthLogitsProcessor(
        text.start, value, text.eos, device=text.device
    ),
    "forced_bos_token_id": lambda value, _: hf.ForcedBOSTokenLogitsProcessor(value),
    "remove_invalid_values": lambda value, _: hf.InfNanRemoveLogitsProcessor(),
    "exponential_decay_length_penalty": lambda value, text: hf.ExponentialDecayLengthPenalty(value, text.eos, text.start),
    "begin_suppress_tokens": lambda value, text: hf.SuppressTokensAtBeginLogitsProcessor(
        value, text.begin, device=text.device
    ),
}
_OF_ENDS = ("min_length", "min_new_tokens", "exponential_decay_length_penalty")
_COUNTING = ("min_new_tokens", "exponential_decay_length_penalty", "begin_suppress_tokens")


def _processed(settings: Mapping[str, Any], eos: list[int]) -> dict[str, Any]:
    """What takes a processor, in the order of ``generate``; single tokens that never come are a bias of the sampling."""
    wanted = {**settings, "bad_words_ids": [word for word in settings.get("bad_words_ids", ()) if len(word) > 1]}
    if not settings.get("sequence_bias"):
        wanted["repetition_penalty"] = None
    if settings.get("min_new_tokens"):
        wanted["min_length"] = None
    if not eos:
        wanted.update(dict.fromkeys(_OF_ENDS))
    forced = wanted.get("forced_bos_token_id") is not None  # a token that may be number 0
    return {name: wanted[name] for name in _PROCESSORS if wanted.get(name) or (name == "forced_bos_token_id" and forced)}


def _behind_prompts(settings: Mapping[str, Any], eos: list[int], device: Any) -> list[Any]:
    """Processors for prompts of any length."""

    def text(length: int) -> _Text:
        behind = length == 1 and settings.get("forced_bos_token_id") is not None
        return _Text(eos=eos, start=length, begin=length + behind, device=device)

    def made(name: str, value: Any) -> Any:
        if name in _COUNTING:
            return ByPrompt(lru_cache(lambda length: _PROCESSORS[name](value, text(length))))
        return _PROCESSORS[name](value, text(0))

    return [made(name, value) for name, value in _processed(settings, eos).items()]
