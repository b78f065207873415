"""Settings of a generation config that draft trees do not honour: one table for pairs, translators and recipes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, final

ByPair: TypeAlias = Literal["refused", "refused without a temperature", "remark"]


@final
@dataclass(frozen=True, kw_only=True)
class Unsupported:
    """The treatment of one setting that is not neutral.

    Attributes:
        neutral: the value that changes nothing; None is neutral too.
        why: the reason, for every message.
        pair: the treatment by :class:`draftwood.Pair`: refused, refused without a temperature, or named in ``remarks``. None
            where the setting is honoured or has no effect.
        translator: whether :class:`draftwood.Translator` names it in ``remarks``.
        recipe: the advice where :class:`draftwood.hf.Recipe` refuses it; None where transformers or a processor applies it.
    """

    neutral: Any = None
    why: str
    pair: ByPair | None = None
    translator: bool = False
    recipe: str | None = None


def _search(why: str, neutral: Any = None, *, translator: bool, recipe: str = "leave it out") -> Unsupported:
    return Unsupported(neutral=neutral, why=why, pair="refused without a temperature", translator=translator, recipe=recipe)


_BEAMS: Final = "beam search keeps several texts at once"
_BOUND: Final = "it is bound to the rows of one batch"
_OTHER_DRAFT: Final = "it is another way of drafting"
_OTHER_MODEL: Final = "give a draft model to recipe instead"
_NO_OUTPUT: Final = Unsupported(
    neutral=False, why="the target scores whole trees, and nothing of that is kept", recipe="leave it out"
)
UNSUPPORTED: Final[Mapping[str, Unsupported]] = {
    "num_beams": _search(_BEAMS, 1, translator=True, recipe="use num_beams=1"),
    "constraints": _search(_BEAMS, translator=False),
    "force_words_ids": _search(_BEAMS, translator=False),
    "do_sample": Unsupported(neutral=False, why="this decodes greedily unless a sampling is given", translator=True),
    "num_return_sequences": Unsupported(neutral=1, why="there is one text per input", pair="remark", translator=True),
    "penalty_alpha": _search("contrastive search looks at hidden states", 0, translator=True),
    "dola_layers": _search("it contrasts layers of the model", translator=True),
    "guidance_scale": Unsupported(neutral=1, why="a second prompt cannot guide a tree", pair="refused", translator=True),
    "encoder_repetition_penalty": Unsupported(neutral=1.0, why=_BOUND, pair="refused", translator=True),
    "encoder_no_repeat_ngram_size": Unsupported(neutral=0, why=_BOUND, pair="refused", translator=True),
    "watermarking_config": Unsupported(why="texts are not watermarked here", pair="refused", translator=True),
    "stop_strings": Unsupported(why="give them as stop strings of the limits", pair="remark", translator=True),
    "max_time": Unsupported(why="only a number of tokens limits a text here", pair="remark", translator=True),
    "token_healing": Unsupported(
        neutral=False,
        why="it rewrites the end of the prompt",
        pair="refused",
        recipe="call model.heal_tokens before, and leave it out",
    ),
    "top_h": Unsupported(why="this truncation, between temperature and top-k, is not done here", pair="refused"),
    "is_assistant": Unsupported(
        neutral=False, why="it is for a model that drafts, and this one is the target", recipe="leave it out"
    ),
    "use_mtp": Unsupported(neutral=False, why=_OTHER_DRAFT, recipe=_OTHER_MODEL),
    "assistant_early_exit": Unsupported(why=_OTHER_DRAFT, recipe=_OTHER_MODEL),
    "speculation_type": Unsupported(why=_OTHER_DRAFT, recipe=_OTHER_MODEL),
    "assistant_ensemble_weight": Unsupported(why="it changes the distribution", recipe="leave it out"),
    "prompt_lookup_num_tokens": Unsupported(
        why=_OTHER_DRAFT, recipe="use recipe(method=Method(method='ngram', shape='5')) instead"
    ),
    **dict.fromkeys(("output_scores", "output_logits", "output_attentions", "output_hidden_states"), _NO_OUTPUT),
}
_SHOWN: Final = 60  # characters of a value in a message


def found_in(settings: Mapping[str, Any], *, ignored: Container[str] = ()) -> Iterator[tuple[str, str, Unsupported]]:
    """Settings that are not neutral: ``name=value``, the reason, and the treatment."""
    for name, row in UNSUPPORTED.items():
        value = settings.get(name)
        if value is not None and value != row.neutral and name not in ignored:
            yield f"{name}={repr(value)[:_SHOWN]}", row.why, row
