"""Byte-level BPE tokenizers for small models (Sennrich et al. 2016, arXiv 1508.07909; bytes as in GPT-2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from draftwood.train.corpus import SEPARATOR


def train_tokenizer(documents: Iterable[str], vocab: int, context: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits. ``<|endoftext|>`` is bos, eos and pad, and is put before every prompt."""
    tokenizer = _bpe(documents, vocab, [SEPARATOR])
    tokenizer.decoder = decoders.ByteLevel()
    # In training every document follows an end-of-text token, so a prompt has to start with one as well.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SEPARATOR} $A",
        pair=f"{SEPARATOR} $A $B",
        special_tokens=[(SEPARATOR, tokenizer.token_to_id(SEPARATOR))],
    )
    return _whole(tokenizer, context, bos_token=SEPARATOR, eos_token=SEPARATOR, pad_token=SEPARATOR)


def train_pair_tokenizer(sentences: Iterable[str], vocab: int, context: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits for both languages of a translation model.

    ``<pad>`` is padding and the start of a translation, ``</s>`` ends every sentence, and ``[MASK]`` stands for a token that
    a drafter fills in. Every sentence gets a leading space, so that its first word has the same tokens as inside a sentence.
    """
    space = normalizers.Sequence([normalizers.Strip(), normalizers.Prepend(" ")])
    tokenizer = _bpe(sentences, vocab, ["<pad>", "</s>", "[MASK]"], space)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return _whole(tokenizer, context, pad_token="<pad>", eos_token="</s>", mask_token="[MASK]")


def _bpe(texts: Iterable[str], vocab: int, special: list[str], normalizer: Any = None) -> Tokenizer:
    """Byte-level BPE with single digits, trained on texts."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _whole(tokenizer: Tokenizer, context: int, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=context, clean_up_tokenization_spaces=False, **special
    )


def tokenizer_in(out: Path, train: Callable[[], PreTrainedTokenizerFast]) -> Any:
    """The tokenizer in a folder, trained and saved there if there is none yet."""
    if not (out / "tokenizer.json").is_file():
        train().save_pretrained(out)
    return AutoTokenizer.from_pretrained(out)
