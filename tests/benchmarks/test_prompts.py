"""Where prompts come from."""

import lzma

import pytest

from benchmarks.config import BenchConfig
from benchmarks.opening import encoder
from benchmarks.prompts import pieces_of_length, read_prompts
from draftwood import Pair
from draftwood.core.errors import ConfigError
from draftwood.tune.prompts import BUILT_IN
from tests.faults.folders import tiny_llama
from tests.tiny_chat import chat_tokenizer


def encode(text):
    return [ord(c) for c in text]


def shown(config):
    """Sources and texts of the prompts."""
    return [(p.source, "".join(map(chr, p.tokens))) for p in read_prompts(config, encode, longest=200)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "woods.val.txt").write_text("first tale\nmore\n<|endoftext|>\nsecond tale\n<|endoftext|>\nthird tale\n")
    book = "\n".join(f"line {i:03} of the book" for i in range(200))
    (tmp_path / "books.val.txt.xz").write_bytes(lzma.compress(book.encode()))
    (tmp_path / "woods.train.txt").write_text("never read\n")
    return tmp_path


@pytest.mark.parametrize("where", ["mine.jsonl", "."])
def test_own_files_and_those_of_published_benchmarks_are_read_as_they_are(tmp_path, where):
    (tmp_path / "mine.jsonl").write_text('{"prompt": "one"}\n\n{"prompt": "two", "source": "other", "id": 4}\n')
    (tmp_path / "a.jsonl").write_text('{"category": "rag", "turns": ["one", "later"]}\n{"question": "two"}\n')
    (tmp_path / "notes.txt").write_text("no prompts\n")
    own = {("mine", "one"), ("other", "two")}
    published = {("rag", "one"), ("a", "two")} if where == "." else set()
    assert set(shown(BenchConfig(prompts=tmp_path / where))) == own | published


def test_messages_go_through_the_chat_template():
    tokenizer = chat_tokenizer()
    pair = Pair(tiny_llama(len(tokenizer)).eval(), None, tokenizer)
    ids = encoder(BenchConfig(chat=True), pair)("the fox")
    assert tokenizer.decode(ids) == "<s>user\nthe fox<end>\n<s>assistant\n"
    assert tokenizer.decode(encoder(BenchConfig(), pair)("the fox")) == "the fox"


@pytest.mark.parametrize("line", ["no json", '{"text": "x"}', '{"prompt": ""}', '{"prompt": 3}', "[1]", '{"turns": []}'])
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "one"}\n' + line + "\n")
    with pytest.raises(ConfigError, match="line 2 of"):
        read_prompts(BenchConfig(prompts=path), encode, None)


def test_missing_files_are_named(folder):
    (folder / "empty").mkdir()
    for config, message in (
        (BenchConfig(prompts=folder / "no"), "does not exist"),
        (BenchConfig(prompts=folder), r"holds no \.jsonl file"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_prompts(config, encode, 200)


def test_prompts_in_the_package_need_no_file_but_room():
    config = BenchConfig(prompts_per_source=1, max_new_tokens=80)
    assert [p.source for p in read_prompts(config, encode, None)] == [*BUILT_IN]
    with pytest.raises(ConfigError, match="do not fit the models' context of 100"):
        read_prompts(config, encode, longest=100)


def test_pieces_have_exactly_their_length(tmp_path):
    def words(text):
        return [len(word) for word in text.split()]

    document = " ".join("x" * (i % 7 + 1) for i in range(60))
    (tmp_path / "a.val.txt").write_text("\n".join([document] * 4))
    found = pieces_of_length(tmp_path, 2, 20, words)
    assert [(p.source, len(p.tokens)) for p in found] == [("a", 20)] * 2
    assert found[0].tokens == tuple(words(document)[:20])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no NAME"):
        pieces_of_length(tmp_path / "empty", 2, 20, words)
    with pytest.raises(ConfigError, match="no 2 pieces of 300 tokens"):
        pieces_of_length(tmp_path, 2, 300, words)
