"""Tiny models whose few tokens are letters, and an oracle of a finite language that knows nothing of llguidance."""

from functools import cache

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftwood.api import Pair
from draftwood.runners.torch_runner import TorchRunner
from tests.helpers import tiny_gpt

END = 0
TOKENS = ("a", "b", "c", "ab")
VOCAB = 1 + len(TOKENS)
PATTERN = "a(b|ca)?|b{1,3}"
WORDS = ("a", "ab", "aca", "b", "bb", "bbb")  # what the pattern matches


def letters(tokens=TOKENS):
    """A byte-level tokenizer of these tokens; token 0 is the end of text."""
    vocab = {"<e>": END, **{token: i for i, token in enumerate(tokens, 1)}}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<e>"])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<e>", bos_token="<e>")


@cache
def runners(dtype=torch.float64):
    return TorchRunner(tiny_gpt(VOCAB, 1, dtype=dtype)), TorchRunner(tiny_gpt(VOCAB, 2, layers=1, dtype=dtype))


def pair_of_letters(tokens=TOKENS, dtype=torch.float64, context=64):
    target, draft = (tiny_gpt(len(tokens) + 1, s, layers=n, dtype=dtype, context=context) for s, n in ((1, 2), (2, 1)))
    return Pair(target, draft, letters(tokens))


def legal(text, words=WORDS, tokens=TOKENS):
    """The tokens that may follow others in a finite language; after the end only the end."""
    written = "".join("" if token == END else tokens[token - 1] for token in text)
    if END in text:
        return [END]
    found = [i for i, token in enumerate(tokens, 1) if any(word.startswith(written + token) for word in words)]
    return [END, *found] if written in words else found


def masked(scores, text, words=WORDS):
    """Scores with -inf for what may not follow the text."""
    out = torch.full_like(scores, -torch.inf)
    allowed = legal(text, words)
    out[allowed] = scores[allowed]
    return out
