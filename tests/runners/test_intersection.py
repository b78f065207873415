"""Drafts of another tokenizer: exact distributions, rows that are read anew, and texts that are tokenized anew."""

import json
from dataclasses import replace

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

import draftwood
from draftwood.api import Pair
from draftwood.core.errors import PairingError
from draftwood.core.log_probs import Distributions
from draftwood.core.settings import Method
from draftwood.exactness.enumeration import enumerated
from draftwood.runners.intersection import SAMPLE
from draftwood.runners.protocols import Prefix
from draftwood.runners.shared_tokens import CopiedText, SharedTokens
from draftwood.sampling.rows import Row
from draftwood.sampling.settings import Sampling
from tests.helpers import tiny_gpt
from tests.ladder.test_rung3_tape import EXACT, WRONG, tampered
from tests.loading.test_gguf_tokenizer import GPT2, QWEN2, byte_level, lines, sentencepiece
from tests.other_tokens import LETTERS, ninety, pieces, runners_of
from tests.runners.zoo import tiny
from tests.tiny_chat import chat_tokenizer, save_chat

OURS, THEIRS = pieces("abc", [("a", "b")]), pieces("cxab", [("b", "c")])


def pair_of(tokenizers=(OURS, THEIRS)):
    model, draft = (tiny_gpt(len(one), seed, layers=seed) for seed, one in zip((2, 1), tokenizers, strict=True))
    return Pair(model, draft, tokenizers[0], runners=runners_of(model, draft, tokenizers))


def report_of(pair, decoder=None, method=None, sampling=None):
    decoder = decoder or pair.decoder(method, temperature=1.0)
    return enumerated(pair, decoder, sampling or Sampling(), ["cb"], tokens=2, seed=0)  # a "c" makes "bc" of the root


@pytest.mark.usefixtures("always_drafts")
@pytest.mark.parametrize(("method", "sampling"), [
    (Method(method="chain", shape="2"), Sampling()), (Method(method="rsd-s", shape="2x2"), Sampling(top_k=3)),
    (Method(method="rsd-s", shape="2x2", verifier="traversal"), Sampling(temperature=0.8, top_k=2)),
    (Method(method="dynamic", nodes=2, shape="2x2"), Sampling(top_p=0.8, min_p=0.1)),
    (Method(method="shared-noise"), Sampling(temperature=0.7)), (Method(method="adaptive"), Sampling(min_p=0.2)),
])  # fmt: skip
def test_every_tree_is_exact(method, sampling):
    report = report_of(pair_of(), method=method, sampling=sampling)
    assert report.total_variation < EXACT
    assert report.drafted > 0


def unrestricted(tree):
    """The draft's distribution over all of its tokens, as if a quarter of it were on tokens of its own."""
    if (logp := tree.draft_logp) is None:
        return tree
    return replace(tree, ranking=lambda: Distributions(logp=logp + torch.tensor(0.75).log(), vocab=logp.shape[-1]))


def test_control_a_distribution_that_is_not_restricted_is_seen():
    pair = pair_of()
    decoder = pair.decoder(Method(method="rsd-s", shape="2x1", verifier="recursive"), temperature=1.0)
    assert report_of(pair, tampered(decoder, lambda tree: tree)).total_variation < EXACT
    assert report_of(pair, tampered(decoder, unrestricted)).total_variation > WRONG


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_scores_are_those_of_the_text_in_the_drafts_tokens(backend):
    """Whatever a row's memory was, joined, lost or copied: a model that reads the whole text anew scores alike."""
    tokenizers = ninety()
    model, draft = (
        tiny("llama", seed, dtype=torch.float32, vocab_size=len(one), num_hidden_layers=1, max_position_embeddings=400)
        for seed, one in enumerate(tokenizers)
    )
    runner, shared = runners_of(model, draft, tokenizers, backend=backend).draft, SharedTokens(*tokenizers, ("a", "b"))
    torch.manual_seed(1)
    rows, cut = [Row(tokens=torch.randint(90, (size,)).tolist()) for size in (30, 45)], 0
    runner.set_rows(rows)
    for number in range(30):
        root, zeros = [[row.tokens[-1]] for row in rows], [[0]] * len(rows)
        node = torch.randint(90, (len(rows), 1)).tolist()
        nothing = torch.ones(len(rows), 1, 1, dtype=torch.bool)
        found = runner.extend(torch.tensor(root), torch.tensor(zeros), nothing)
        runner.extend(torch.tensor(node), torch.tensor(zeros) + 1, nothing.expand(-1, -1, 2))
        for row, logits in zip(rows, found.logits, strict=True):
            ids = tokenizers[1](tokenizers[0].decode(row.tokens))["input_ids"]
            assert runner._copy(row).row.tokens == ids or " " in tokenizers[0].decode(row.tokens)[64:]
            wanted = draft(input_ids=torch.tensor([runner._copy(row).row.tokens])).logits[0, -1, [*shared.map.values()]]
            torch.testing.assert_close(logits[0, [*shared.map]], wanted, atol=2e-4, rtol=2e-4)
        before = [runner.held(row) for row in rows]
        for row, [own] in zip(rows, node, strict=True):
            row.tokens += [own, *torch.randint(90, (number % 4,)).tolist()]
        runner.commit([[0, 1][: 1 + (number % 4 > 0)]] * len(rows))
        cut += sum(runner.held(row) < held for row, held in zip(rows, before, strict=True))
        if number == 10:
            text = Row(tokens=list(rows[0].tokens))
            runner.keep(rows[0], text)
            rows.append(Row(tokens=[*text.tokens, 3, 4]))
            runner.prefill(rows[-1], len(text.tokens), prefix=Prefix(text, len(text.tokens)))
            runner.set_rows(rows)
            assert runner.held(rows[-1]) > 20
        if number == 20:
            del rows[1]
            runner.set_rows(rows)
    assert cut, "no row lost tokens that were in memory"
    assert found.logits[0, 0].isfinite().nonzero().flatten().tolist() == list(range(10, len(LETTERS)))


def bpe(words, size):
    made = ByteLevelBPETokenizer()
    made.train_from_iterator(words, vocab_size=size, min_frequency=1, show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=made._tokenizer)


def whole(backend, **special):
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


KINDS = {
    "bytes": lambda: whole(byte_level(QWEN2), eos_token="<end>"), "gpt2": lambda: whole(byte_level(GPT2)),
    "blank": lambda: whole(sentencepiece(prefix=True)), "pieces": lambda: whole(sentencepiece(prefix=False)),
    "chat": chat_tokenizer,
}  # fmt: skip


@pytest.mark.parametrize(("target", "draft"), [(a, b) for a in KINDS for b in KINDS if a != b])
def test_texts_are_the_same_in_both_tokenizers_at_every_token(target, draft):
    """Blanks in front, special tokens, six scripts, and characters of several tokens."""
    ours, theirs = KINDS[target](), KINDS[draft]()
    shared = SharedTokens(ours, theirs, (target, draft))
    assert len(shared.map) > 50
    for line in lines(12, seed=3):
        ids = ours(line, add_special_tokens=False)["input_ids"]
        text, copy = ours.decode(ids, clean_up_tokenization_spaces=False), CopiedText(shared)
        for end in range(1, len(ids) + 1):
            copy.row.tokens = copy.read(ids[:end])
        assert copy.row.tokens == CopiedText(shared).read(ids), "tokens depend on how the text came"
        again = theirs(text, add_special_tokens=False)["input_ids"]
        found, wanted = (theirs.decode(one, clean_up_tokenization_spaces=False) for one in (copy.row.tokens, again))
        assert found == wanted
        assert copy.row.tokens == again or len(line) > 64


def test_tokens_of_one_text_are_one_pair_and_those_of_bytes_come_last():
    ours, theirs = KINDS["blank"](), KINDS["bytes"]()  # a second training may number tokens of equal counts otherwise
    both = SharedTokens(ours, theirs, ("a", "b"))
    assert len(set(both.map.values())) == len(both.map)
    assert both.map[ours.convert_tokens_to_ids("▁hill")] == theirs.convert_tokens_to_ids("Ġhill")
    assert both.map[ours.convert_tokens_to_ids("b")] == theirs.convert_tokens_to_ids("b")
    assert ours.convert_tokens_to_ids("<0x62>") not in both.map
    assert both.map[ours.convert_tokens_to_ids("<0xF0>")] == theirs.convert_tokens_to_ids("ð")


def test_a_character_that_is_not_whole_is_waited_for():
    ours, theirs = bpe(["plain"], 260), bpe(["smiles 🙂🙂🙂"], 290)
    shared, ids = SharedTokens(ours, theirs, ("a", "b")), ours("hm 🙂!")["input_ids"]
    copy, start = CopiedText(shared), theirs("hm ")["input_ids"]
    for end in range(3, 7):
        assert copy.read(ids[:end]) == [*start, *(shared.map[token] for token in ids[3:end])]
    assert copy.read(ids[:7]) == theirs("hm 🙂")["input_ids"] != [*start, *(shared.map[token] for token in ids[3:7])]
    assert copy.read(ids) == theirs("hm 🙂!")["input_ids"]


def test_a_beginning_of_text_is_the_drafts_own_and_a_text_of_nothing_is_read():
    from tests.tiny_chat import adding

    ours, theirs = adding(), bpe(["the fox"], 270)
    start = SharedTokens(theirs, ours, ("a", "b"))
    assert CopiedText(start).read(theirs("the")["input_ids"]) == ours("the")["input_ids"]
    shared = SharedTokens(ours, theirs, ("a", "b"))
    assert CopiedText(shared).read(ours("the")["input_ids"]) == theirs("the")["input_ids"]
    assert CopiedText(shared).read([ours.bos_token_id]) == [0]


def test_what_shares_too_little_is_refused_by_name():
    with pytest.raises(PairingError, match=r"'draft' cannot draft for 'target'.*no token of its vocabulary is one of"):
        pair_of((OURS, pieces("xyz")))
    with pytest.raises(PairingError, match=r"the 1 tokens of both have \d+% of its probability .* 50% are needed"):
        runners_of(tiny_gpt(3, 1), tiny_gpt(5, 1), (pieces("abc"), pieces("axyzw")), least=0.5)
    assert set("aeiou") < set(SAMPLE)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A chat model, and one whose byte-level tokenizer knows other words."""
    folder = tmp_path_factory.mktemp("others")
    own = bpe(["zebras quiz vexed jocks of my big sphinx"], 300)
    return save_chat(folder / "target"), save_chat(folder / "draft", tokenizer=own)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_pair_of_folders_writes_what_the_target_writes(folders, backend):
    pair = draftwood.load(*folders, options={"backend": backend, "profile": "none", "dtype": "float32"})
    assert 0.5 < pair.draft.kind.shared < 1
    prompts, made = ["the fox 🙂", "a dog and a hen ran", "Über"], dict(seed=5, max_new_tokens=24)
    for temperature in (0.0, 1.0):
        wanted = [one.token_ids for one in pair.generate(prompts, method="ar", temperature=temperature, **made)]
        for method in (Method(method="shared-noise", nodes=6), Method(method="chain", verifier="coupled")):
            if temperature == 0:
                method = replace(method, verifier="auto")
            found = pair.generate(prompts, method=method, temperature=temperature, **made)
            assert [one.token_ids for one in found] == wanted
            assert sum(one.stats.drafted for one in found) > 10
    chat = [{"role": "user", "content": "the fox"}]
    one = pair.chat(chat, seed=1, max_new_tokens=8, method="chain", temperature=1.0)
    chat += [{"role": "assistant", "content": one.text}, {"role": "user", "content": "a hen"}]
    again = pair.chat(chat, seed=1, max_new_tokens=8, method="shared-noise", temperature=1.0)
    assert again.token_ids == pair.chat(chat, seed=1, max_new_tokens=8, method="ar", temperature=1.0).token_ids


def test_the_program_says_what_is_shared(folders):
    from click.testing import CliRunner

    from draftwood.cli import main

    names = ["--target", str(folders[0]), "--draft", str(folders[1])]
    given = [*names, "--profile", "none", "--max-new-tokens", "6", "the fox"]
    found = CliRunner().invoke(main, ["generate", *given])
    assert "a draft of another tokenizer, by " in found.output + found.stderr
    said = json.loads(CliRunner().invoke(main, ["generate", "--json", *given]).stdout)
    assert 0.5 < said["draft_shares"] < 1
