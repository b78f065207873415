"""Keyword arguments that do not exist: the error says which one was meant, or in which settings it belongs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from typing import Any, Final, TypeVar, cast, get_args

from draftwood.core.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_ALIASES: Final = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_length", "num_predict", "n_predict"), "max_new_tokens"),
    **dict.fromkeys(("stop_strings", "stop_sequences"), "stop"),
    **dict.fromkeys(("repeat_penalty", "rep_pen"), "repetition_penalty"),
    **dict.fromkeys(("top_logprobs", "output_scores"), "logprobs"),
    **dict.fromkeys(("response_format", "json_schema", "guided_json", "structured_outputs", "schema", "regex"), "grammar"),
    **dict.fromkeys(("prompts", "inputs", "input_ids"), "prompt"),
    **dict.fromkeys(("model", "model_id", "model_name"), "target"),
    **dict.fromkeys(("draft_model", "assistant_model", "model_draft", "speculative_model"), "draft"),
    **dict.fromkeys(("max_model_len", "ctx_size"), "max_length"),
    **dict.fromkeys(("max_num_seqs", "parallel"), "max_rows"),
    **dict.fromkeys(("served_model_name", "alias"), "name"),
    **dict.fromkeys(("num_assistant_tokens", "num_speculative_tokens"), "nodes"),
    "temp": "temperature",
    "logits_processor": "processors",
    "torch_dtype": "dtype",
    "eos_token_id": "stop_token_ids",
    "api_key": "api_key_file",
    "file": "input",
}
"""Names of other programs -> ours."""
_OTHER_ADVICE: Final = {
    "do_sample": "give temperature=0 for the most likely text, and a higher temperature to sample",
    "tools": "draftwood serve takes tools, and reads the calls of an answer",
    **dict.fromkeys(("n", "num_return_sequences"), "give the prompt several times"),
    **dict.fromkeys(("stream", "streamer"), "stream gives the text piece by piece"),
    **dict.fromkeys(("system", "system_prompt"), 'begin messages with {"role": "system", "content": ...}'),
    **dict.fromkeys(("min_tokens", "min_new_tokens"), "limits=Limits(ignore_eos=True) writes up to max_new_tokens"),
    "messages": "chat takes messages",
    "enable_thinking": 'give chat_template_kwargs={"enable_thinking": ...}',
    "load_in_4bit": 'give options=LoadOptions(weights="int4")',
    "load_in_8bit": 'give options=LoadOptions(weights="int8")',
    "token": "the environment variable HF_TOKEN holds the one of the hub",
    "logits_processor": "give sampling=Sampling(processors=...); in generate of transformers "
    "give custom_generate=recipe(draft_model), not recipe itself",
    "cache_dir": "the environment variable HF_HOME names the folder of the hub's files",
}
_SETTINGS: Final[dict[str, tuple[str, list[str]]]] = {}
"""Arguments that are settings -> the name of their type, and its fields."""


class UnknownArgumentError(ConfigError, TypeError):
    """A keyword argument that does not exist."""


def known_arguments(function: F) -> F:
    """A decorator: an unknown keyword argument is an :class:`UnknownArgumentError`, in a sentence."""
    signature = _unpacked(function)
    names = [name for name in signature.parameters if name != "self"]

    @wraps(function)
    def checked(*positional: Any, **given: Any) -> Any:
        if unknown := next((name for name in given if name not in names), None):
            where = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
            said = advice(unknown, names) or f"it takes {', '.join(names)}"
            raise UnknownArgumentError(f"{where} has no argument {unknown!r}: {said}")
        return function(*positional, **given)

    checked.__signature__ = signature  # type: ignore[attr-defined]
    return cast(F, checked)


def _unpacked(function: Callable[..., Any]) -> inspect.Signature:
    """The signature, with the keys of ``**given: Unpack[...]`` as keyword arguments of their own."""
    signature = inspect.signature(function)
    *others, last = signature.parameters.values()
    if last.kind is not inspect.Parameter.VAR_KEYWORD:
        return signature
    (keys,) = get_args(inspect.signature(function, eval_str=True).parameters[last.name].annotation)
    hints = {name: hint.__forward_arg__ for name, hint in keys.__annotations__.items()}
    own = [inspect.Parameter(name, last.KEYWORD_ONLY, default=None, annotation=hint) for name, hint in hints.items()]
    return signature.replace(parameters=[*others, *own])


def known_fields(argument: str) -> Callable[[type[T]], type[T]]:
    """As :func:`known_arguments`, for a dataclass of settings; the decorator comes before ``@dataclass``.

    Args:
        argument: the argument of other functions that takes these settings.
    """

    def decorate(cls: type[T]) -> type[T]:
        _SETTINGS[argument] = cls.__name__, [field.name for field in fields(cls)]  # type: ignore[arg-type]
        cls.__init__ = known_arguments(cls.__init__)  # type: ignore[method-assign]
        return cls

    return decorate


def advice(name: str, names: Sequence[str]) -> str | None:
    """What to give in place of a setting that is none of ``names``; None if nothing like it is known."""
    if (meant := alias(name, names)) is not None:
        return f"give {meant}"
    if name in _OTHER_ADVICE:
        return _OTHER_ADVICE[name]
    if (found := _owner(_ALIASES.get(name, name), names)) is not None:
        return found
    settings = [one for argument, (_, own) in _SETTINGS.items() if argument in names for one in own]
    near = get_close_matches(name, [*names, *settings], n=1, cutoff=0.7)
    if not near:
        return None
    return f"did you mean {near[0]}?" if near[0] in names else f"did you mean {near[0]}? {_owner(near[0], names)}"


def alias(name: str, names: Container[str]) -> str | None:
    """The one of ``names`` that other programs call ``name``; None if there is none."""
    return meant if (meant := _ALIASES.get(name)) is not None and meant in names else None


def _owner(name: str, names: Sequence[str]) -> str | None:
    """Where a field of settings belongs; None if no settings have it."""
    owners = [(argument, kind) for argument, (kind, own) in _SETTINGS.items() if name in own]
    for argument, kind in owners:
        if argument in names:
            return f"give {argument}={kind}({name}=...)"
    return f"it is a setting of {owners[0][1]}" if owners else None
