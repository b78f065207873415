"""Arguments as callers write them: methods by name, settings as mappings or one by one, prompts as text or token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypedDict

import numpy as np
from torch import Tensor

from draftwood.core.checks import is_unicode, settings, several, short_repr
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.methods import MethodName
from draftwood.core.settings import Method
from draftwood.core.token_logprobs import LogprobsLike
from draftwood.grammar.grammar import Grammar
from draftwood.sampling.settings import Sampling

MethodLike: TypeAlias = Method | MethodName | Mapping[str, Any]
SamplingLike: TypeAlias = Sampling | Mapping[str, Any]
LimitsLike: TypeAlias = Limits | Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[int]
"""A text, or its token ids."""
Array: TypeAlias = Tensor | np.ndarray[Any, Any]
"""Token ids; two dimensions are several prompts."""
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "grammar")
_CHARACTERS = 16  # of a token, at most, in a text that is drafted from
_LIMITS = ("max_new_tokens", "stop")


def method_of(given: MethodLike | None) -> Method:
    """A method from its name or a mapping of its settings; the default for None.

    Raises:
        ConfigError: anything else, or what :class:`Method` refuses.
    """
    if given is None:
        return Method()
    return Method(method=given) if isinstance(given, str) else settings("method", given, Method)


class CallSettings(TypedDict, total=False):
    """The settings of a call, whole or one by one; those that are left out, or None, are the session's own.

    :meth:`draftwood.engine.session.Session.generate` says what each is.
    """

    method: MethodLike | None
    sampling: SamplingLike | None
    limits: LimitsLike | None
    max_new_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    logprobs: LogprobsLike
    grammar: Grammar | None
    repetition_penalty: float | None
    stop: str | Sequence[str] | None
    draft_text: Prompt | None


def sampling_of(given: CallSettings, own: Callable[[Mapping[str, Any]], Sampling]) -> Sampling:
    """The sampling of a call: the whole one, or the result of ``own`` for the settings given one by one.

    Raises:
        ConfigError: both were given, or values that :class:`Sampling` refuses.
    """
    singles = {name: value for name, value in given.items() if name in _SAMPLING and value is not None}
    if (whole := given.get("sampling")) is None:
        return own(singles)
    _refuse_both("sampling", singles)
    return settings("sampling", whole, Sampling)


def limits_of(given: CallSettings, own: Limits) -> Limits:
    """The limits of a call, like :func:`sampling_of`, with the same errors."""
    singles: dict[str, Any] = {name: value for name, value in given.items() if name in _LIMITS and value is not None}
    if (whole := given.get("limits")) is not None:
        _refuse_both("limits", singles)
        return settings("limits", whole, Limits)
    if (stop := singles.get("stop")) is not None:
        singles["stop"] = (stop,) if isinstance(stop, str) else several("stop", stop, str, "texts")
    return replace(own, **singles) if singles else own


def _refuse_both(name: str, singles: Mapping[str, Any]) -> None:
    if singles:
        single = next(iter(singles))
        raise ConfigError(f"both {name} and {single} were given: put {single} into {name}, or leave {name} out")


def prompts_of(name: str, given: object) -> tuple[list[str | list[int]], bool]:
    """Texts or lists of token ids in order, and whether a single one was given, not in a list.

    Args:
        name: the name of the argument in an error.
        given: a text, token ids (a list, a tuple, an array or tensor of one dimension), or several of these; an array or
            tensor of two dimensions is several.

    Raises:
        ConfigError: anything else.
    """
    whole = _plain(given)
    if isinstance(whole, list | tuple) and not (whole and _ids(whole)):
        return [prompt_of(name, part, several=True) for part in whole], False
    return [prompt_of(name, given, several=True)], True


def prompt_of(name: str, given: object, *, several: bool = False) -> str | list[int]:
    """A single text or list of token ids, as in :func:`prompts_of`; it may be one of ``several``."""
    part = _plain(given)
    if isinstance(part, str):
        return check_text(name, part)
    ids = _ids(part) if isinstance(part, list | tuple) else None
    if ids is None:
        raise _no_prompt(name, given, several=several)
    return ids


def check_text(name: str, text: str) -> str:
    """Text that can be written as UTF-8.

    Raises:
        ConfigError: half of a surrogate pair, as from bytes of another encoding.
    """
    if not is_unicode(text):
        raise ConfigError(
            f"the {name} is no Unicode text (it holds bytes of another encoding, or half of a surrogate pair): convert it "
            "to UTF-8"
        )
    return text


def tokenized(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text. A beginning-of-text token in the text, as chat templates write it, is not added again."""
    ids = list(tokenizer(text)["input_ids"])
    if tokenizer.bos_token and text.startswith(tokenizer.bos_token) and ids[:2] == [tokenizer.bos_token_id] * 2:
        bare = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        return ids[1:] if ids[1 : len(bare) + 1] == bare else ids
    return ids


def draft_ids(tokenizer: Any, draft_text: Prompt | None, limits: Limits) -> list[int]:
    """Token ids of a text that an output of these limits may repeat; what lies far beyond the output's end is left out.

    Raises:
        ConfigError: neither text nor token ids.
    """
    given, most = prompt_of("draft_text", "" if draft_text is None else draft_text), 2 * limits.max_new_tokens
    if isinstance(given, str) and given:
        given = tokenizer(given[: _CHARACTERS * most], add_special_tokens=False)["input_ids"]
    return list(given)[:most]


def _plain(value: object) -> object:
    """Arrays and tensors as Python lists and numbers."""
    return value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value


def _ids(values: Sequence[object]) -> list[int] | None:
    """The values, if all of them are whole numbers."""
    ids = [value for value in map(_plain, values) if isinstance(value, int) and not isinstance(value, bool)]
    return ids if len(ids) == len(values) else None


def _no_prompt(name: str, given: object, *, several: bool) -> ConfigError:
    hint = " (of what a tokenizer made, its input_ids)" if isinstance(given, Mapping) and "input_ids" in given else ""
    wanted = f"a text, its token ids{hint}, or a list of several of these" if several else f"a text, or its token ids{hint}"
    return ConfigError(f"{name} is {short_repr(given)}: give {wanted}")
