"""Tokenizers of GGUF files: the tokens of the original on lines in six scripts, or a refusal by the key."""

import json
import random
import re

import gguf
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import draftwood
from draftwood.core.errors import ConfigError, ModelError
from draftwood.engine.chat import ChatTemplate
from draftwood.loading import gguf_tokenizer
from draftwood.loading.gguf_header import read_header
from draftwood.loading.gguf_tokenizer import tokenizer_of
from draftwood.loading.infill import Infill
from draftwood.loading.outline import refuse_without_template
from tests.faults.folders import tiny_llama
from tests.loading.gguf_files import F32, source, write_gguf

SCRIPTS = (
    "the fox's DOGS ran Über", "Лиса бежала к холму", "η αλεπού έτρεξε στον λόφο", "ركض الثعلب إلى التل",
    "लोमड़ी पहाड़ी की ओर दौड़ी", "狐狸跑向红色的小山",
)  # fmt: skip
SPECIAL = ["<end>", "<\uff5cUser\uff5c>", "  \t"]
"""Special tokens, one of which is not written in letters for bytes, and one of a user with blanks."""
USER = SPECIAL[2]
BETWEEN = (" ", " ", " ", "  ", "\n", ", ", "... ", "'ll ", "1", "  7", " 12,5 ", "!?/", " 🙂 ", "—", "\r\n\n", *SPECIAL)
SHORT, REST = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + REST
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + REST
)
GPT4O = TEKKEN.replace("|[^\\r", f"{SHORT}?|[^\\r").replace(r"*|\p{N}|", rf"*{SHORT}?|\p{{N}}{{1,3}}|")


def lines(count, seed):
    """Lines of words in six scripts, with blanks, numbers, signs and names of special tokens between them."""
    dice, found = random.Random(seed), []
    words = [word for script in SCRIPTS for word in script.split()] + list(SCRIPTS[-1]) + ["hill", "hills", "hilly"]
    for _ in range(count):
        parts = [(dice.choice(words), dice.choice(BETWEEN)) for _ in range(dice.randrange(1, 9))]
        found.append(dice.choice(("", " ", "  ")) + "".join(word + between for word, between in parts))
    return found


def trained(made, special, **settings):
    """Vocabulary and merges of a tokenizer that has learnt from lines, with ``special`` tokens in front."""
    trainer = trainers.BpeTrainer(special_tokens=special, show_progress=False, **settings)
    made.train_from_iterator(lines(300, seed=1), trainer)
    model = json.loads(made.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def byte_level(*splits, whole=False):
    """An original that splits by expressions and, if ``whole``, takes a word whole that no merges make."""
    found = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    parts = [pre_tokenizers.Split(Regex(split), "isolated") for split in splits]
    found.pre_tokenizer = pre_tokenizers.Sequence([*parts, level])
    vocab, merges = trained(found, SPECIAL, vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    merges = [merge for merge in merges if "".join(merge) != "Ġhilly"]
    found.model = models.BPE(vocab, merges, ignore_merges=whole)
    assert (found.token_to_id("Ġhilly") in found.encode("a hilly").ids) == whole
    found.decoder = decoders.ByteLevel()
    return found


def sentencepiece(*, prefix):
    """An original with tokens of bytes, and a blank before each text or not."""
    settings = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    found, blanks = Tokenizer(models.BPE(**settings)), normalizers.Replace(" ", "▁")
    found.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), blanks]) if prefix else blanks
    special = [*SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab, merges = trained(found, special, vocab_size=700, limit_alphabet=60)
    again = Tokenizer(models.BPE(vocab, merges, **settings))
    again.normalizer = found.normalizer
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    again.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    again.add_special_tokens(["<unk>"])
    return again


def read(path, original, **settings):
    """The tokenizer of a file that holds the original."""
    original.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL[:2]])
    original.add_tokens([AddedToken(USER, normalized=False)])
    whole = PreTrainedTokenizerFast(tokenizer_object=original, bos_token="<end>", eos_token="<end>")
    model = tiny_llama(len(whole), hidden_size=32)
    return tokenizer_of(read_header(write_gguf(path, model, whole, F32, **settings)))


def compare(found, original):
    used = set()
    for line in lines(1000, seed=2):
        ids = original.encode(line, add_special_tokens=False).ids
        assert found(line)["input_ids"] == ids, line
        assert found.decode(ids, clean_up_tokenization_spaces=False) == original.decode(ids, skip_special_tokens=False), line
        used.update(ids)
    assert {original.token_to_id(token) for token in SPECIAL} <= used
    assert len(used) > 100


@pytest.mark.parametrize(("pre", "splits"), [
    ("gpt-2", (GPT2,)), ("smollm", (r"\p{N}", GPT2)), ("qwen2", (QWEN2,)), ("deepseek-r1-qwen", (QWEN2,)),
    ("llama-bpe", (LLAMA3,)), ("falcon-h1", (LLAMA3,)), ("dbrx", (LLAMA3,)), ("tekken", (TEKKEN,)), ("gpt-4o", (GPT4O,)),
])  # fmt: skip
def test_a_byte_level_tokenizer_makes_the_tokens_of_the_original(tmp_path, pre, splits):
    original = byte_level(*splits, whole=pre in ("llama-bpe", "falcon-h1", "tekken"))
    found = read(tmp_path / "x.gguf", original, pre=pre, metadata={"tokenizer.ggml.add_bos_token": False})
    compare(found, original)


@pytest.mark.parametrize("prefix", [True, False])
def test_a_sentencepiece_tokenizer_makes_the_tokens_of_the_original(tmp_path, prefix):
    original, metadata = sentencepiece(prefix=prefix), {"tokenizer.ggml.add_bos_token": False}
    for said in (prefix, None)[: 1 + prefix]:
        more = {} if said is None else {"tokenizer.ggml.add_space_prefix": said}
        found = read(tmp_path / "x.gguf", original, pre=None, metadata=metadata | more)
        compare(found, original)


def said_of(family, original):
    """The metadata of a tokenizer: Gemma 4's has merges too."""
    said = {"add_bos_token": False}
    if family == "gemma4":
        merges = [" ".join(merge) for merge in json.loads(original.to_str())["model"]["merges"]]
        said |= {"model": "gemma4", "merges": merges, "add_space_prefix": False}
    return {f"tokenizer.ggml.{key}": value for key, value in said.items()}


def test_a_tokenizer_of_gemma_4_makes_the_tokens_of_the_original(tmp_path):
    original = sentencepiece(prefix=False)
    compare(read(tmp_path / "x.gguf", original, pre=None, metadata=said_of("gemma4", original)), original)


@pytest.mark.parametrize("family", ["gemma4", "sentencepiece", "byte-level"])
def test_marks_in_contents_are_text_whatever_kind_the_file_gives_them(tmp_path, family, monkeypatch):
    """Converters write the marks of Gemma 4's calls and thoughts as tokens of users; in folders they are special."""
    marks = ["<|channel>", "<tool_call|>", '<|"|>', "<|tool_call|>", "<think>"]
    original = byte_level(GPT2) if family == "byte-level" else sentencepiece(prefix=False)
    original.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in marks])
    path, pre = tmp_path / "x.gguf", "gpt-2" if family == "byte-level" else None
    read(path, original, pre=pre, metadata=said_of(family, original), template="{{ messages[0]['content'] }}<|channel>")

    def ids():
        template = ChatTemplate(tokenizer_of(read_header(path)), 999)
        return template.encode([{"role": "user", "content": "".join(marks)}])

    numbers = [original.token_to_id(mark) for mark in marks]
    assert [token for token in ids() if token in numbers] == [numbers[-1], numbers[0]]
    monkeypatch.setattr(gguf_tokenizer, "_MARK", re.compile("(?!)"))  # control
    assert ids()[:-1] == numbers


@pytest.mark.parametrize(("begins", "ends"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("made", [lambda: byte_level(GPT2), lambda: sentencepiece(prefix=True)], ids=["bytes", "pieces"])
def test_a_text_has_the_ends_that_the_file_says(tmp_path, made, begins, ends):
    original, metadata = made(), {"tokenizer.ggml.add_bos_token": begins, "tokenizer.ggml.add_eos_token": ends}
    found = read(tmp_path / "x.gguf", original, metadata=metadata)
    inner = original.encode("the fox").ids
    assert found("the fox")["input_ids"] == [0] * begins + inner + [0] * ends
    assert found("the fox", add_special_tokens=False)["input_ids"] == inner


def test_keys_without_an_effect_are_none(tmp_path):
    metadata = {"remove_extra_whitespaces": False, "add_sep_token": True, "mask_token_id": 3, "token_type_count": 1}
    found = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    tokenizer = tokenizer_of(read_header(write_gguf(tmp_path / "x.gguf", *source(), F32, metadata=found)))
    assert tokenizer("the fox")["input_ids"] == source()[1]("the fox")["input_ids"]


@pytest.mark.parametrize("keys", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")])
def test_the_tokens_of_a_gap_are_those_of_the_file(tmp_path, keys):
    metadata = {f"tokenizer.ggml.{key}_token_id": at for key, at in zip(keys, (4, 7, 5), strict=True)}
    tokenizer = tokenizer_of(read_header(write_gguf(tmp_path / "x.gguf", *source(), F32, metadata=metadata)))
    assert Infill.of(tokenizer) == Infill(4, 7, 5)


def test_scores_that_do_not_say_what_is_made_first_are_refused(tmp_path, monkeypatch):
    add = gguf.GGUFWriter.add_token_scores
    monkeypatch.setattr(gguf.GGUFWriter, "add_token_scores", lambda self, found: add(self, [-1000.0] * len(found)))
    with pytest.raises(ModelError, match=r"tokenizer.ggml.scores .* several tokens have -1000.0"):
        read(tmp_path / "x.gguf", sentencepiece(prefix=True))


DEFAULT = "{% for m in messages %}<end>{{ m['content'] }}{% endfor %}"
TOOLS = "{% for m in messages %}{{ m['content'] }}{{ m['tool_calls'] }}{% endfor %}{{ (tools or []) | length }}"


@pytest.mark.parametrize("names", [("default", "tool_use"), ("tool_use",), ("default",), ("rag", "tool_use")])
def test_of_several_chat_templates_that_for_tools_is_for_tools(tmp_path, names):
    texts = {"default": DEFAULT, "tool_use": TOOLS, "rag": "{{ documents }}"}
    template = [{"name": name, "template": texts[name]} for name in names]
    path = write_gguf(tmp_path / "x.gguf", *source(), F32, template=template)
    refuse_without_template(path)
    pair = draftwood.load(path, options={"backend": "torch"})
    chat, tools = [{"role": "user", "content": "fox"}], [{"type": "function", "function": {"name": "hen"}}]
    has = "tool_use" in names
    for given, wanted in (([], "<end>fox" if "default" in names else "fox0"), (tools, "fox1" if has else "<end>fox")):
        assert pair.tokenizer.decode(pair.template.encode(chat, tools=given)) == wanted
    assert pair.template.reads("tools") == has
    assert pair.template.source == (DEFAULT if "default" in names else TOOLS)
    call = {"type": "function", "function": {"name": "hen", "arguments": {}}}
    called = [*chat, {"role": "assistant", "tool_calls": [call]}, *chat]
    if "default" in names:
        with pytest.raises(ConfigError, match="writes no tool calls"):
            pair.template.encode(called)
    if has:
        assert "hen" in pair.tokenizer.decode(pair.template.encode(called, tools=tools))
