"""What the generation config of an encoder-decoder model asks of its texts, honoured as ``model.generate(num_beams=1,
do_sample=False)`` of ``transformers`` does; what draft trees cannot honour is said in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from transformers.generation import logits_process as hf

from draftwood.errors import ModelError
from draftwood.output import Limits
from draftwood.sampling import Sampling

_START = 1  # tokens that the decoder reads before anything is written
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
    "stop_strings": (None, "give them as stop strings of the limits"),
    "max_time": (None, "only a number of tokens limits a text here"),
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
    config = model.generation_config
    settings = config.to_diff_dict()
    forced = settings.get("forced_bos_token_id")
    prompt = (_start_token(model), *(() if forced is None else (int(forced),)))
    final_token = settings.get("forced_eos_token_id")
    if isinstance(final_token, list):
        final_token = min(final_token)  # of equal scores the first is taken
    return Asked(
        prompt=prompt,
        sampling=Sampling(
            temperature=0.0,
            repetition_penalty=1.0 if settings.get("sequence_bias") else float(settings.get("repetition_penalty", 1.0)),
            logit_bias=dict.fromkeys(_forbidden(settings, eos), -float("inf")) or None,
            processors=_processors(settings, eos, len(prompt), model.device) or None,
        ),
        limits=Limits(max_new_tokens=_most(settings, longest)),
        final=final_token,
        remarks=tuple(
            f"the model's generation config says {name}={str(settings[name])[:_SHOWN]}: {what}"
            for name, (neutral, what) in _LEFT_OUT.items()
            if settings.get(name) is not None and settings[name] != neutral
        ),
    )


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


def _processors(settings: Mapping[str, Any], eos: list[int], prompt: int, device: Any) -> list[Any]:
    """In the order of ``generate``; a repetition penalty only behind a bias of sequences, else the sampling has it."""
    least = settings["min_new_tokens"] + _START if settings.get("min_new_tokens") else settings.get("min_length")
    words = [word for word in settings.get("bad_words_ids") or () if len(word) > 1]
    made = {
        "sequence_bias": lambda value: hf.SequenceBiasLogitsProcessor(sequence_bias=value),
        "repetition_penalty": hf.RepetitionPenaltyLogitsProcessor,
        "no_repeat_ngram_size": hf.NoRepeatNGramLogitsProcessor,
        "bad_words_ids": lambda value: hf.NoBadWordsLogitsProcessor(value, eos or None),
        "min_length": lambda value: hf.MinLengthLogitsProcessor(value, eos, device=device),
        "remove_invalid_values": lambda value: hf.InfNanRemoveLogitsProcessor(),
        "exponential_decay_length_penalty": lambda value: hf.ExponentialDecayLengthPenalty(value, eos, _START),
        "begin_suppress_tokens": lambda value: hf.SuppressTokensAtBeginLogitsProcessor(value, prompt, device=device),
    }
    wanted = {**settings, "bad_words_ids": words, "min_length": least if eos else None}
    if not settings.get("sequence_bias"):
        wanted["repetition_penalty"] = None
    return [make(wanted[name]) for name, make in made.items() if wanted.get(name)]
