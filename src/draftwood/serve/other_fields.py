"""Fields of other programs' interfaces that this server does not have.

Some never change a text and are taken. The others are refused by name, unless their value changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from draftwood.core.checks import short_repr
from draftwood.serve.errors import ApiError


@final
@dataclass(frozen=True)
class OtherField:
    """A field that the server does not have.

    Attributes:
        why: the reason, after "but" in the error; for a field that is always taken, what it is for.
        neutral: values that change nothing, as null does; None if no value changes a text.
    """

    why: str
    neutral: tuple[Any, ...] | None

    def takes(self, value: Any) -> bool:
        """Whether a value changes nothing."""
        return value is None or self.neutral is None or any(_same(value, one) for one in self.neutral)


def _taken(what: str) -> OtherField:
    return OtherField(what, None)


def _refused(why: str, *neutral: Any) -> OtherField:
    return OtherField(why, neutral)


_TOOLS = "this server runs no tools"
_TEXT = "the models of this server read and write text"
_NO_SUCH = "this server does not sample so"
_GRAMMAR = "a text follows response_format, regex or grammar: send one of them"
_TEMPLATE = "values for the chat template stand in chat_template_kwargs: send it there"

OTHER_FIELDS: Final[Mapping[str, OtherField]] = {
    "user": _taken("who asks"),
    "metadata": _taken("notes for stored answers"),
    "safety_identifier": _taken("who asks"),
    "prompt_cache_key": _taken("which requests begin alike"),
    "prompt_cache_retention": _taken("how long a prompt is kept"),
    "cache_prompt": _taken("whether a prompt is kept"),
    "cache_salt": _taken("which requests share what is kept"),
    "id_slot": _taken("where a text is written"),
    "service_tier": _taken("how soon a text is written"),
    "priority": _taken("how soon a text is written"),
    "request_id": _taken("a name of the request"),
    "rid": _taken("a name of the request"),
    "prediction": _taken("a draft of the text; this server drafts with models of its own"),
    "verbosity": _taken("how long answers of OpenAI's models are"),
    "tools": _refused("this server runs no tools: send tool_choice none with it, which shows the model none", []),
    "tool_choice": _refused(_TOOLS, "none", "auto"),
    "parallel_tool_calls": _refused(_TOOLS, True, False),
    "functions": _refused(_TOOLS, []),
    "function_call": _refused(_TOOLS, "none", "auto"),
    "web_search_options": _refused(_TOOLS),
    "store": _refused("this server stores nothing", False),
    "audio": _refused(_TEXT),
    "modalities": _refused(_TEXT, ["text"]),
    "mm_processor_kwargs": _refused(_TEXT, {}),
    "suffix": _refused("the models of this server write what follows a prompt only", ""),
    "documents": _refused("the models of this server read messages only: write documents into one", []),
    "truncate_prompt_tokens": _refused("prompts are read as a whole: shorten it"),
    "best_of": _refused("every text is drawn once", 1),
    "use_beam_search": _refused("every text is drawn once", False),
    "length_penalty": _refused("it belongs to beam search", 1),
    "early_stopping": _refused("it belongs to beam search", False),
    "do_sample": _refused("temperature 0 is what never samples: send it", True),
    "typical_p": _refused(_NO_SUCH, 1),
    "tfs_z": _refused(_NO_SUCH, 1),
    "top_a": _refused(_NO_SUCH, 0),
    "top_n_sigma": _refused(_NO_SUCH, -1),
    "mirostat": _refused(_NO_SUCH, 0),
    "xtc_probability": _refused(_NO_SUCH, 0),
    "dry_multiplier": _refused(_NO_SUCH, 0),
    "dynatemp_range": _refused(_NO_SUCH, 0),
    "samplers": _refused(_NO_SUCH),
    "logits_processors": _refused(_NO_SUCH, []),
    "repeat_penalty": _refused("its name here is repetition_penalty: send that", 1),
    "n_predict": _refused("its name here is max_tokens: send that", -1),
    "max_new_tokens": _refused("its name here is max_tokens: send that", -1),
    "bad_words": _refused("tokens are forbidden by logit_bias: send that", []),
    "allowed_token_ids": _refused("tokens are forbidden by logit_bias: send that"),
    "guided_json": _refused(_GRAMMAR),
    "guided_regex": _refused(_GRAMMAR),
    "guided_choice": _refused(_GRAMMAR),
    "guided_grammar": _refused(_GRAMMAR),
    "structured_outputs": _refused(_GRAMMAR),
    "json_schema": _refused(_GRAMMAR),
    "ebnf": _refused(_GRAMMAR),
    "chat_template": _refused("the model's own chat template is used"),
    "enable_thinking": _refused(_TEMPLATE),
    "thinking": _refused(_TEMPLATE),
    "reasoning": _refused(_TEMPLATE),
    "skip_special_tokens": _refused("texts are written without special tokens", True),
    "spaces_between_special_tokens": _refused("texts are written without special tokens", True, False),
    "include_stop_str_in_output": _refused("stop texts are cut off", False),
    "no_stop_trim": _refused("stop texts are cut off", False),
    "prompt_logprobs": _refused("/v1/completions scores prompts with echo and logprobs: send them there"),
}


def without_others(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body without fields that the server does not have and whose values change nothing.

    Tools do not reach the model where ``tool_choice`` is ``none``.

    Raises:
        ApiError: another value of such a field; names it.
    """
    unused = {"tools"} if body.get("tool_choice") == "none" else set()
    for name, value in body.items():
        other = OTHER_FIELDS.get(name)
        if other is not None and name not in unused and not other.takes(value):
            raise ApiError(
                400,
                f"{name} is {short_repr(value)}, but {other.why}; leave it out",
                param=name,
                code="unsupported_parameter",
            )
    return {name: value for name, value in body.items() if name not in OTHER_FIELDS}


def _same(value: Any, one: Any) -> bool:
    """Whether two values are the same JSON: 1 is 1.0, and not true."""
    return isinstance(value, bool) == isinstance(one, bool) and bool(value == one)
