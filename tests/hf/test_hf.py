"""``generate(custom_generate=recipe(...))`` gives the texts of plain ``generate``, or says what it cannot do."""

import gc
import weakref
from collections import Counter
from functools import cache

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import MaxLengthCriteria, PreTrainedTokenizerFast, StoppingCriteria, StopStringCriteria
from transformers.generation import GenerateDecoderOnlyOutput

import draftwood.runners.torch_runner as torch_runner
from draftwood import Limits, Pair, Sampling
from draftwood.core.errors import ConfigError
from draftwood.core.settings import Method
from draftwood.engine.requests import Request
from draftwood.hf import recipe
from draftwood.sampling.warping import Warper
from tests.runners.zoo import EOS, PAD, SUPPORTED, VOCAB, tiny

NEW = 10
METHODS = {
    "chain": Method(method="chain", shape="2"),
    "rsd-c": Method(method="rsd-c", shape="2-2"),
    "rsd-s": Method(method="rsd-s", shape="3x2"),
    "shared-noise": Method(method="shared-noise", nodes=6),
    "ngram": Method(method="ngram", shape="3"),
}
EACH = [
    (kind, name)
    for i, kind in enumerate(SUPPORTED)
    for name in (METHODS if kind == "llama" else dict.fromkeys(("rsd-c", [*METHODS][i % len(METHODS)])))
]
"""Every architecture with a tree and with another method in turn, and Llama with all of them."""


@cache
def target(kind="llama"):
    return tiny(kind, 0, dtype=torch.float32)


@cache
def other(kind="llama"):
    return tiny(kind, 1, dtype=torch.float32, hidden_size=16, head_dim=4, intermediate_size=24, num_hidden_layers=1)


def ragged(rows=8):
    """A batch padded on the left; some rows hold the padding token as text."""
    rng = torch.Generator().manual_seed(0)
    lengths = [1 + (5 * i) % 9 for i in range(rows)]
    ids = torch.randint(4, VOCAB, (rows, max(lengths)), generator=rng)
    ids[:, -1:][::3] = PAD
    mask = torch.arange(max(lengths)) >= max(lengths) - torch.tensor(lengths)[:, None]
    return {"input_ids": ids.masked_fill(~mask, PAD), "attention_mask": mask.long()}


def plain(model, inputs=None, **settings):
    return model.generate(**(inputs or ragged()), **{"do_sample": False, "max_new_tokens": NEW, **settings})


def ours(model, made, inputs=None, **settings):
    return plain(model, inputs, custom_generate=made, **settings)


@cache
def plain_text(kind):
    return plain(target(kind))


# Greedy texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), EACH)
def test_greedy_texts_are_those_of_generate(kind, name):
    made = recipe(None if name == "ngram" else other(kind), method=METHODS[name])
    assert torch.equal(ours(target(kind), made), plain_text(kind))


@pytest.mark.parametrize("kind", SUPPORTED)
def test_the_target_as_its_own_draft_is_always_right(kind):
    made = recipe(target(kind), method=METHODS["chain"])
    assert torch.equal(ours(target(kind), made), plain_text(kind))
    accepted = sum((stats.accepted for stats in made.stats), Counter())
    short = sum(count for length, count in accepted.items() if length < 2)
    assert accepted[2] > 8
    assert short <= len(made.stats)  # only a row's last round


def test_the_texts_are_worth_comparing():
    for kind in SUPPORTED:
        rows = plain_text(kind)[:, -NEW:].tolist()
        assert len({tuple(row) for row in rows}) == 8
        assert sum(len(set(row)) for row in rows) / 8 > 3


def test_default_methods_and_a_single_row_without_mask():
    ids = {"input_ids": torch.tensor([[5, 6, 7]])}
    wanted = plain(target(), ids)
    for made in (recipe(), recipe(other()), recipe(method=Method(method="ar"))):
        assert torch.equal(ours(target(), made, ids), wanted)


def test_control_padding_that_reaches_the_model(monkeypatch):
    request = lambda prompt, padding, **rest: Request(prompt=[*padding, *prompt], **rest)  # noqa: E731
    monkeypatch.setattr("draftwood.hf.Request", request)
    assert not torch.equal(ours(target(), recipe(other())), plain_text("llama"))


# Logits processors ------------------------------------------------------------------------------------------------------


def only_some(row, ids):
    return [t for t in range(4, VOCAB) if (t + int(ids[-1]) + row) % 3]


PROCESSORS = {
    "repetition": {"repetition_penalty": 1.7},
    "no_repeat": {"no_repeat_ngram_size": 2},
    "bad_words": {"bad_words_ids": [[t] for t in range(30, 60)] + [[70, 71], [72, 80]]},
    "suppress": {"suppress_tokens": list(range(20, 50)), "begin_suppress_tokens": list(range(50, 60))},
    "min_new_tokens": {"min_new_tokens": 7, "eos_token_id": list(range(3, 60)), "pad_token_id": PAD},
    "min_length": {"min_length": 14, "eos_token_id": list(range(3, 60)), "pad_token_id": PAD},
    "forced": {"forced_eos_token_id": EOS, "sequence_bias": [[[5, 6], 3.0], [[9], 4.0]]},
    "decay": {"exponential_decay_length_penalty": (2, 1.9)},
    "constrained": {"prefix_allowed_tokens_fn": only_some},
    "several": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "suppress_tokens": [7, 8], "renormalize_logits": True},
}


@pytest.mark.parametrize("case", PROCESSORS)
def test_processors_see_the_text_of_their_own_node(case):
    settings, batch = PROCESSORS[case], ragged(5)
    wanted = plain(target(), batch, **settings)
    assert not torch.equal(wanted, plain(target(), batch)), "this processor changes nothing"
    for made in (recipe(target(), method=METHODS["rsd-c"]), recipe(method=METHODS["ngram"])):
        assert torch.equal(ours(target(), made, batch, **settings), wanted)


def test_control_processors_that_see_the_root_only(monkeypatch):
    inner = Warper._process
    blind = lambda self, used, s, prefixes: inner(self, used, s, [[[] for _ in row] for row in prefixes])  # noqa: E731
    monkeypatch.setattr(Warper, "_process", blind)
    settings = PROCESSORS["repetition"]
    made = recipe(target(), method=METHODS["rsd-c"])
    assert not torch.equal(ours(target(), made, **settings), plain(target(), **settings))


# Where texts end --------------------------------------------------------------------------------------------------------


class Sum(StoppingCriteria):
    """Ends a row when its last two tokens add up to a multiple of seven."""

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -2:].sum(1) % 7 == 0


@cache
def tokenizer():
    letters = "abcdefghij"
    words = {letters[i // 10] + letters[i % 10]: i for i in range(VOCAB)}
    inner = Tokenizer(models.WordLevel(words, unk_token="aa"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(".."), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="aa", unk_token="aa")


@pytest.mark.parametrize("step", [0, 1, 5, 6])
def test_end_of_text_in_the_middle_of_an_accepted_block(step):
    eos = plain_text("llama")[2, -NEW + step].item()
    settings = {"eos_token_id": [eos, 90], "pad_token_id": 88}
    made = recipe(target(), method=Method(method="chain", shape="8"))
    wanted = plain(target(), **settings)
    assert torch.equal(ours(target(), made, **settings), wanted)
    assert 88 in wanted[2].tolist()
    first = wanted[2, -NEW:].tolist().index(eos)  # nothing is drafted below it
    assert max(made.stats[2].accepted) >= min(first, step)


def test_padding_is_the_end_of_text_token_if_there_is_no_other():
    eos = plain_text("llama")[2, -NEW + 3].item()
    model = tiny("llama", 0, dtype=torch.float32, pad_token_id=None)
    assert torch.equal(ours(model, recipe(), eos_token_id=eos), plain(model, eos_token_id=eos))


@pytest.mark.parametrize("eos", [EOS, None], ids=["with eos", "rows go on until all are done"])
@pytest.mark.parametrize("which", ["sum", "string", "time"])
def test_stopping_criteria_are_asked_about_every_prefix(which, eos):
    # Without eos, the other rows' end shows in every row: generate pads nothing then.
    model = target() if eos else tiny("llama", 0, dtype=torch.float32, eos_token_id=None)
    words = tokenizer().decode(plain_text("llama")[3, -NEW + 5 : -NEW + 7])
    settings = {
        "sum": {"stopping_criteria": [Sum()]},
        "string": {"stopping_criteria": [StopStringCriteria(tokenizer(), [words[1:3], "jh"])]},
        "time": {"max_time": 0.0},
    }[which]
    wanted = plain(model, **settings)
    made = recipe(model, method=METHODS["rsd-c"])
    assert torch.equal(ours(model, made, **settings), wanted)
    assert wanted.shape[1] < plain_text("llama").shape[1] or (wanted == PAD).any()


# Streaming, sampling, outputs -------------------------------------------------------------------------------------------


class Recorder:
    def __init__(self):
        self.got = []
        self.ended = 0

    def put(self, value):
        self.got.append(value.tolist())

    def end(self):
        self.ended += 1


def test_a_streamer_receives_the_prompt_and_every_token():
    ids, expected, recorder = {"input_ids": torch.tensor([[5, 6, 7]])}, Recorder(), Recorder()
    wanted = plain(target(), ids, streamer=expected)
    assert torch.equal(ours(target(), recipe(target(), streamer=recorder), ids), wanted)
    assert recorder.got == expected.got
    assert recorder.ended == 1


def test_a_streamer_that_comes_from_generate_is_refused():
    """``generate`` of today hands none on. Should it, the recipe's own would not be the only one."""
    with pytest.raises(ConfigError, match="streamer cannot be handed to the model"):
        recipe()(target(), torch.tensor([[5, 6, 7]]), stopping_criteria=[MaxLengthCriteria(5)], streamer=Recorder())


def test_several_rows_and_a_streamer_are_refused():
    with pytest.raises(ConfigError, match="a streamer takes one text, but 8 rows came"):
        ours(target(), recipe(streamer=Recorder()))


SAMPLED = {"do_sample": True, "temperature": 0.8, "top_k": 20, "repetition_penalty": 1.1}


@pytest.mark.parametrize("name", METHODS)
def test_every_sampled_row_is_the_text_of_its_own_prompt_settings_and_seed(name):
    """As the Python interface with these numbers, whose distribution is that of generate (tests/api, the ladder)."""
    batch, settings = ragged(4), {**SAMPLED, "repetition_penalty": 1.0}  # transformers 5.5 penalises padding too
    made = (recipe(other(), method=METHODS[name], seed=seed) for seed in (3, [3, 4, 5, 6]))
    together, listed = (ours(target(), one, batch, **settings) for one in made)
    assert torch.equal(together, listed)
    pair, sampling, limits = Pair(target(), other(), None), Sampling(temperature=0.8, top_k=20), Limits(max_new_tokens=NEW)
    for row, mask in enumerate(batch["attention_mask"].bool()):
        prompt, text = batch["input_ids"][row][mask].tolist(), together[row, batch["input_ids"].shape[1] :].tolist()
        wanted = pair.generate(prompt, method=METHODS[name], sampling=sampling, seed=3 + row, limits=limits).token_ids
        assert wanted
        assert text == [*wanted, *[PAD] * (len(text) - len(wanted))]  # an end of text may come early


def test_without_a_seed_torchs_generator_decides():
    def sample(seed):
        torch.manual_seed(seed)
        return ours(target(), recipe(other()), ragged(2), **SAMPLED)

    assert torch.equal(sample(1), sample(1))
    assert not torch.equal(sample(1), sample(2))
    made = recipe(other())
    assert not torch.equal(ours(target(), made, ragged(2), **SAMPLED), ours(target(), made, ragged(2), **SAMPLED))


def test_greedy_decoding_leaves_torchs_generator_alone():
    before = torch.get_rng_state()
    ours(target(), recipe(other()))
    assert torch.equal(torch.get_rng_state(), before)


def test_several_texts_of_one_prompt():
    ids = {"input_ids": torch.tensor([[5, 6, 7]])}
    texts = ours(target(), recipe(other(), seed=0), ids, num_return_sequences=3, **SAMPLED)
    assert texts.shape == (3, 3 + NEW)
    assert len({tuple(t) for t in texts.tolist()}) == 3


def test_a_dictionary_is_returned_where_it_is_asked_for():
    out = ours(target(), recipe(other()), return_dict_in_generate=True)
    assert isinstance(out, GenerateDecoderOnlyOutput)
    assert torch.equal(out.sequences, plain_text("llama"))


def test_the_recipe_remembers_proofs_not_models(monkeypatch):
    proofs = []
    monkeypatch.setattr(torch_runner, "check_tree_forward", lambda runner: proofs.append(runner.model.config.model_type))
    made, model = recipe(other()), tiny("gpt2", dtype=torch.float32)
    for one in (model, target(), model):
        ours(one, made)
    assert sorted(proofs) == ["gpt2", "llama", "llama"]
    gone = weakref.ref(model)
    del model, one
    gc.collect()
    assert gone() is None
