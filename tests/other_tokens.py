"""Tiny pairs of models whose tokenizers differ."""

from unittest import mock

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from draftwood.runners import intersection
from draftwood.runners.factory import make_runners
from draftwood.runners.intersection import IntersectionRunner
from draftwood.runners.shared_tokens import SharedTokens


def pieces(letters, merges=()):
    """A tokenizer of letters, and of what the merges make of two tokens."""
    names = dict.fromkeys([*letters, *("".join(merge) for merge in merges)])
    backend = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, list(merges)))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def runners_of(model, draft, tokenizers, backend="torch", least=0.0):
    """Runners of a target and a draft with these tokenizers, which share at least this of the draft's probability."""
    found = make_runners(model, draft, backend=backend)
    with mock.patch.object(intersection, "LEAST", least):
        shared = SharedTokens(*tokenizers, ("target", "draft"))
        return found._replace(draft=IntersectionRunner(found.draft, shared, found.target.vocab_size))


LETTERS = [chr(32 + i) for i in range(90)]
_OWN = [chr(0x100 + i) for i in range(10)]
_USED = LETTERS[::-1][:80]
_TWO = [(a, b) for i, a in enumerate(_USED) for j, b in enumerate(_USED) if (i + 2 * j) % 9 == 0]
_THREE = [(_USED[i], "".join(pair)) for pair in _TWO for i in (0, 1)]


def ninety():
    """The tokenizers of a target with 90 letters, and of a draft that writes many pairs and triples of 80 of them as one
    token, so that the last tokens of a text often become others."""
    return pieces(LETTERS), pieces([*_OWN, *_USED], [*_TWO, *_THREE])
