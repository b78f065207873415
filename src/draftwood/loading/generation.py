"""The generation config of a model, honoured as ``model.generate`` of ``transformers`` does.

An encoder-decoder model gives the text of ``num_beams=1, do_sample=False``; settings that draft trees do not honour become
remarks. A causal language model gives the distribution of ``generate``; such settings are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from draftwood.core.checks import settings as check_settings
from draftwood.core.errors import ConfigError, DraftwoodError, ModelError
from draftwood.core.limits import Limits
from draftwood.loading.unsupported import found_in
from draftwood.runners.context import vocabulary
from draftwood.sampling.processors import ByPrompt
from draftwood.sampling.settings import OF_MODELS, TOP_K, Sampling

_START = 1  # the start token, which the decoder reads first
_SAYS = "the model's generation config says"
_DRAWN = [name for name in OF_MODELS if name != "repetition_penalty"]
_WARPERS: Mapping[str, Callable[[float, Any], Any]] = {  # in the order of ``generate``; neutral outside (0, 1)
    "typical_p": lambda value, _: _hf("TypicalLogitsWarper")(mass=value),
    "epsilon_cutoff": lambda value, _: _hf("EpsilonLogitsWarper")(epsilon=value),
    "eta_cutoff": lambda value, device: _hf("EtaLogitsWarper")(epsilon=value, device=device),
}


def _hf(name: str) -> Any:
    """A processor of ``transformers``, which is slow to import."""
    return getattr(import_module("transformers.generation.logits_process"), name)


class Defaults(NamedTuple):
    """Defaults of an encoder-decoder model's texts from its generation config."""

    prompt: tuple[int, ...]  # the start token, and a forced first one (such as a language) if there is one
    sampling: Sampling  # greedy, with all changes of the scores
    limits: Limits  # the most tokens after the start token, like ``max_new_tokens`` of ``generate``
    remarks: tuple[str, ...]  # settings that are not honoured, one sentence each


def defaults_of(model: Any, eos: list[int], longest: int | None) -> Defaults:
    """The defaults of an encoder-decoder model.

    Args:
        eos: its end-of-text tokens.
        longest: most tokens that its decoder can read, None if unlimited.

    Raises:
        ModelError: the config names no start token.
    """
    settings = _settings(model)
    forced = settings.pop("forced_bos_token_id", None)
    prompt = (_start_token(model), *(() if forced is None else (int(forced),)))
    text = _Text(eos=eos, start=_START, begin=len(prompt), device=model.device)
    return Defaults(
        prompt=prompt,
        sampling=Sampling(
            temperature=0.0,
            repetition_penalty=_penalty(settings),
            logit_bias=dict.fromkeys(_forbidden(settings, eos), -float("inf")) or None,
            processors=[_PROCESSORS[name](value, text) for name, value in _processed(settings, eos).items()] or None,
        ),
        limits=Limits(max_new_tokens=_most(settings, longest)),
        remarks=tuple(f"{_SAYS} {setting}: {why}" for setting, why, row in found_in(settings) if row.translator),
    )


def own_sampling(model: Any, eos: list[int], given: Mapping[str, Any] | None = None) -> Sampling:
    """The sampling of a causal language model in ``model.generate``: greedy without ``do_sample``.

    Args:
        eos: its end-of-text tokens.
        given: settings of a :class:`Sampling` by name. They replace the model's own; biases and processors are added to
            them. A temperature also decides whether tokens are drawn. If so, the config's truncation applies. The default
            ``top_k`` of 50 in ``generate`` applies only where the config says ``do_sample``.

    Raises:
        ConfigError: a setting that cannot be honoured, or truncation without drawing; names it.
        ModelError: an invalid value of the config, which fails deep inside ``transformers``.
    """
    check_settings("given", given or {}, Sampling)
    own, given = _settings(model), dict(given or {})
    try:
        return _own(model, eos, own, given)
    except DraftwoodError:
        raise
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"the target's generation config holds a value that generate refuses too ({error}): correct "
            "generation_config.json, or give a Sampling of your own"
        ) from error


def _own(model: Any, eos: list[int], own: Mapping[str, Any], given: dict[str, Any]) -> Sampling:
    drawn = given["temperature"] != 0 if "temperature" in given else bool(own.get("do_sample"))
    _refuse(own, given, drawn=drawn)
    settings = {"top_k": TOP_K, **own} if own.get("do_sample") else own
    settings = {**settings, **{name: given.pop(name) for name in OF_MODELS if name in given}}
    _, vocab = vocabulary(model)
    forbidden = [token for token in _forbidden(settings, eos) if 0 <= token < vocab]  # generate ignores others too
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
    for setting, why, row in found_in(own, ignored=() if drawn else ("top_h",)):
        searches = row.pair == "refused without a temperature"
        if row.pair == "refused" or (searches and "temperature" not in given):
            advice = "a temperature (0 for the most likely text), or " if searches else ""
            raise ConfigError(
                f"the target's generation config says {setting}: {why}; give {advice}a Sampling of your own, or take it out "
                "of generation_config.json"
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
    """Refuse settings that only matter for drawing where nothing is drawn.

    Args:
        given: settings by name. With a temperature among them nothing is refused.
        why: the reason why nothing is drawn.

    Raises:
        ConfigError: names the setting.
    """
    if "temperature" not in given and (idle := [name for name in _DRAWN if name in given]):
        raise ConfigError(f"{idle[0]} was given, but {why}, and the most likely text stays the same: give a temperature too")


def remarks(model: Any) -> tuple[str, ...]:
    """Settings of a causal language model's config that no :class:`Sampling` can express, one sentence each."""
    found = found_in(_settings(model))
    return tuple(f"{_SAYS} {setting}: {why}" for setting, why, row in found if row.pair == "remark")


def max_new_tokens_of(model: Any) -> int | None:
    """The most new tokens that the generation config sets, None if it sets none."""
    found: int | None = _settings(model).get("max_new_tokens")
    return found


def final_token(model: Any) -> int | None:
    """The last token of a text that its limits end (``forced_eos_token_id``), None if it may be any.

    Raises:
        ModelError: not a token of the model.
    """
    forced = _settings(model).get("forced_eos_token_id")
    several: list[Any] = forced if isinstance(forced, list) else [forced]
    if forced is None:
        return None
    _, vocab = vocabulary(model)
    if not several or not all(isinstance(token, int) and 0 <= token < vocab for token in several):
        raise ModelError(
            f"the target's generation config says forced_eos_token_id={forced!r}, but the target knows tokens 0 to "
            f"{vocab - 1}: correct it"
        )
    found: int = min(several)  # generate takes the first of equal scores
    return found


def _settings(model: Any) -> dict[str, Any]:
    """The settings in the generation config, without unset ones."""
    config = getattr(model, "generation_config", None)
    return {} if config is None else {name: value for name, value in config.to_diff_dict().items() if value is not None}


def _start_token(model: Any) -> int:
    config = model.generation_config
    for found in (config.decoder_start_token_id, config.bos_token_id, getattr(model.config, "decoder_start_token_id", None)):
        if isinstance(found, int):
            return found
    raise ModelError(
        "the target's generation config has no decoder_start_token_id, the first token of its texts: add it to "
        "generation_config.json"
    )


def _most(settings: Mapping[str, Any], longest: int | None) -> int:
    """The most tokens of a text: from the generation config, else the model's positions, else the default limit."""
    if settings.get("max_new_tokens") is not None:
        return int(settings["max_new_tokens"])
    length = settings.get("max_length") or longest
    return max(1, int(length) - _START) if length else Limits().max_new_tokens


def _forbidden(settings: Mapping[str, Any], eos: list[int]) -> list[int]:
    """Tokens that must not occur."""
    words = [word[0] for word in settings.get("bad_words_ids") or () if not _by_processor(word, settings)]
    return [*(token for token in words if token not in eos), *(settings.get("suppress_tokens") or ())]


def _by_processor(word: list[int], settings: Mapping[str, Any]) -> bool:
    """Whether a bad word needs a processor: several tokens, or the forced first token, which is not suppressed there."""
    return len(word) > 1 or word[0] == settings.get("forced_bos_token_id")


def _penalty(settings: Mapping[str, Any]) -> float:
    """The repetition penalty; 1 with a sequence bias, after which a processor applies it."""
    return 1.0 if settings.get("sequence_bias") else float(settings.get("repetition_penalty", 1.0))


class _Text(NamedTuple):
    """Offsets of processors: ``start`` tokens come before the generated text, ``begin`` before the first free choice."""

    eos: list[int]
    start: int
    begin: int
    device: Any


_PROCESSORS: Mapping[str, Callable[[Any, _Text], Any]] = {  # in the order of ``generate``
    "sequence_bias": lambda value, _: _hf("SequenceBiasLogitsProcessor")(sequence_bias=value),
    "repetition_penalty": lambda value, _: _hf("RepetitionPenaltyLogitsProcessor")(value),
    "no_repeat_ngram_size": lambda value, _: _hf("NoRepeatNGramLogitsProcessor")(value),
    "bad_words_ids": lambda value, text: _hf("NoBadWordsLogitsProcessor")(value, text.eos or None),
    "min_length": lambda value, text: _hf("MinLengthLogitsProcessor")(value, text.eos, device=text.device),
    "min_new_tokens": lambda value, text: _hf("MinNewTokensLengthLogitsProcessor")(
        text.start, value, text.eos, device=text.device
    ),
    "forced_bos_token_id": lambda value, _: _hf("ForcedBOSTokenLogitsProcessor")(value),
    "remove_invalid_values": lambda value, _: _hf("InfNanRemoveLogitsProcessor")(),
    "exponential_decay_length_penalty": lambda value, text: _hf("ExponentialDecayLengthPenalty")(
        value, text.eos, text.start
    ),
    "begin_suppress_tokens": lambda value, text: _hf("SuppressTokensAtBeginLogitsProcessor")(
        value, text.begin, device=text.device
    ),
}
_OF_ENDS = ("min_length", "min_new_tokens", "exponential_decay_length_penalty")
_COUNTING = ("min_new_tokens", "exponential_decay_length_penalty", "begin_suppress_tokens")


def _processed(settings: Mapping[str, Any], eos: list[int]) -> dict[str, Any]:
    """Settings that need a processor, in the order of ``generate``. Single suppressed tokens are a bias of the sampling."""
    words = [word for word in settings.get("bad_words_ids", ()) if _by_processor(word, settings)]
    wanted = {**settings, "bad_words_ids": words}
    if not settings.get("sequence_bias"):
        wanted["repetition_penalty"] = None
    if settings.get("min_new_tokens"):
        wanted["min_length"] = None
    if not eos:
        wanted.update(dict.fromkeys(_OF_ENDS))
    forced = wanted.get("forced_bos_token_id") is not None  # its id may be 0
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
