"""Translating from Python: the target's own greedy text, whatever drafts, and what a generation config asks for."""

import copy
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

import draftwood
from draftwood import ConfigError, Limits, LoadOptions, Method, ModelError, PairingError, Translator, load_translator
from draftwood.core.errors import CacheError
from draftwood.loading.generation import defaults_of
from tests.tiny_translation import sentences

DRAFTS = [None, "block", "causal", "other", "target"]
SOURCES = sentences(16, seed=5)


def opened(folder, draft, **options):
    name = None if draft is None else folder / draft
    return load_translator(folder / "target", name, options=LoadOptions(dtype="float32", device="cpu", **options))


def generated(translator, sentence, **settings):
    """What ``generate`` writes alone, the decoder's first tokens among it."""
    ids = translator.tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        out = translator.model.generate(**ids, num_beams=1, do_sample=False, **settings)[0].tolist()
    return out


def tokens_of(translator, results):
    """Of each text, the decoder's first tokens among them."""
    return [[*translator.prompt, *result.token_ids] for result in results]


@pytest.fixture(scope="module")
def plain(translation):
    translator = opened(translation, None)
    return [generated(translator, source) for source in SOURCES]


def test_the_texts_differ_in_length_and_some_have_no_end(plain):
    """Else the comparisons below would say little."""
    assert len({len(text) for text in plain}) > 4
    assert len({text[-1] == 1 for text in plain}) == 2


WAYS = [("block", "rsd-s"), ("block", "shared-noise"), ("other", "chain"), ("causal", "dynamic"), ("block", "ngram")]


@pytest.mark.parametrize(("draft", "method"), [*((draft, "auto") for draft in DRAFTS), *WAYS, (None, "ar")])
def test_greedy_texts_are_generates_texts_one_by_one_and_in_a_ragged_batch(translation, plain, draft, method):
    translator, chosen = opened(translation, draft), Method(method=method)
    together = translator.translate(SOURCES, method=chosen)
    assert tokens_of(translator, together) == plain
    assert tokens_of(translator, [translator.translate(source, method=chosen) for source in SOURCES[:6]]) == plain[:6]
    decode = translator.tokenizer.decode
    assert [result.text for result in together] == [decode(text, skip_special_tokens=True) for text in plain]
    assert all(result.lossless for result in together)
    if draft == "target":  # everything is accepted
        chains = translator.translate(SOURCES, method=Method(method="chain", shape="3"))
        assert all(result.stats.block_efficiency > 3 for result in chains if len(result.token_ids) > 5)


def test_auto_takes_what_the_draft_is_good_for(translation):
    found = {draft: opened(translation, draft).method().method for draft in DRAFTS}
    assert found == {
        None: "lookup", "block": "block", "causal": "adaptive", "other": "adaptive", "target": "adaptive",
    }  # fmt: skip


def test_the_time_to_read_the_source_counts(translation, monkeypatch):
    translator = opened(translation, "block")
    decoder = type(translator.target._decoder)
    encode = decoder.encode

    def slow(self, tokens, mask):
        translator.target.forward_seconds += 500.0
        return encode(self, tokens, mask)

    monkeypatch.setattr(decoder, "encode", slow)
    results = translator.translate(SOURCES[:2])
    assert [result.stats.seconds["target"] >= 250 for result in results] == [True, True]
    assert sum(result.stats.seconds["target"] for result in results) < 750


ASKED = [
    {"bad_words_ids": [[300, 301], [290], [1]], "suppress_tokens": [330, 340], "no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.7, "sequence_bias": [[[320], 2.0], [[330, 331], -3.0]]},
    {"min_length": 12},
    {"min_new_tokens": 12, "max_new_tokens": 15},
    {"exponential_decay_length_penalty": [3, 1.8]},
    {"begin_suppress_tokens": list(range(290, 348)), "renormalize_logits": True},
    {"forced_eos_token_id": 1, "max_length": 9},
    {"forced_eos_token_id": [341, 340], "max_new_tokens": 6},
    {"forced_bos_token_id": 305, "begin_suppress_tokens": list(range(300, 348)), "min_new_tokens": 5, "max_length": 11},
    {"remove_invalid_values": True, "max_length": None},
]


@pytest.fixture(scope="module")
def fresh(translation):
    """A translator whose generation config asks for more."""
    loaded = opened(translation, "other")

    def make(**settings):
        model = copy.copy(loaded.model)
        model.generation_config = copy.deepcopy(loaded.model.generation_config)
        for name, value in settings.items():
            setattr(model.generation_config, name, value)
        assert loaded.draft is not None
        return Translator(model, loaded.draft.model, loaded.tokenizer)

    return make


@pytest.mark.parametrize("settings", ASKED, ids=",".join)
def test_a_generation_config_is_honoured_as_generate_honours_it(fresh, plain, settings):
    translator = fresh(**settings)
    more = {"max_length": 40} if settings.get("max_length", 0) is None else {}
    wanted = [generated(translator, source, **more) for source in SOURCES[:8]]
    for method in (Method(), Method(method="ar")):
        results = translator.translate(SOURCES[:8], method=method)
        assert tokens_of(translator, results) == wanted
    assert translator.remarks == ()
    if not more:
        assert wanted != plain[:8], "the setting changes nothing here, so this test says nothing"


def test_what_is_not_honoured_is_said(fresh):
    translator = fresh(num_beams=6, do_sample=True, encoder_no_repeat_ngram_size=3, early_stopping=True)
    assert [remark.split(":")[0] for remark in translator.remarks] == [
        "the model's generation config says num_beams=6",
        "the model's generation config says do_sample=True",
        "the model's generation config says encoder_no_repeat_ngram_size=3",
    ]
    assert translator.sampling.greedy


def test_nothing_says_how_to_begin():
    model = SimpleNamespace(generation_config=GenerationConfig(), config=SimpleNamespace(), device="cpu")
    with pytest.raises(ModelError, match="no decoder_start_token_id"):
        defaults_of(model, [1], None)
    model.generation_config.bos_token_id = 5
    assert defaults_of(model, [1], None).prompt == (5,)
    assert defaults_of(model, [1], 30).limits == Limits(max_new_tokens=29)
    assert defaults_of(model, [1], None).limits == Limits()


TOO_LONG = "Haus " * 60


@pytest.mark.parametrize(("text", "said"), [
    (TOO_LONG, r"^the sentence has \d+ tokens, but the target's encoder reads 40: split it"),
    (["Haus", TOO_LONG], r"^sentence 1: the sentence has"),
])  # fmt: skip
def test_sentences_that_are_too_long(translation, text, said):
    translator = opened(translation, None)
    with pytest.raises(CacheError, match=said):
        translator.translate(text)
    assert translator.translate([]) == []


def test_drafts_that_do_not_fit(translation, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "draft_heads", "block": 3}', encoding="utf-8")
    cases = [
        ("its-block", PairingError, "the drafter was trained for the target with digest"),
        ("stranger", PairingError, "cannot draft for"),
        (str(tmp_path / "none"), ModelError, "there is no folder"),
        (str(tmp_path), ModelError, r"the configuration of .* cannot be loaded: .*draft_heads"),
    ]
    for draft, error, said in cases:
        with pytest.raises(error, match=said):
            opened(translation, draft)


def test_targets_that_do_not_fit(translation, monkeypatch):
    with pytest.raises(ModelError, match="is no encoder-decoder model: use draftwood generate, or load"):
        load_translator(translation / "causal")
    with pytest.raises(ModelError, match="is an encoder-decoder model: use draftwood translate, or load_translator"):
        draftwood.load(translation / "target")
    with pytest.raises(ConfigError, match="without a target"):
        load_translator(draft=translation / "block")
    options = [{"profile": "mine.json"}, {"weights": "int8"}]
    for option in options:
        with pytest.raises(ConfigError, match="was given, but it is for causal language models only: leave it out"):
            load_translator(translation / "target", options=LoadOptions(**option))
    monkeypatch.setattr("draftwood.loading.names.bundled_pairs", dict)
    with pytest.raises(ModelError, match="no bundled translation pair: name a target"):
        load_translator()


def test_the_bundled_pair_is_found(translation, monkeypatch):
    pair = {"target": translation / "target", "draft": translation / "block"}
    monkeypatch.setattr("draftwood.loading.names.bundled_pairs", lambda: {"translation": pair})
    translator = draftwood.load_translator()
    assert translator.method().method == "block"
    assert translator.known.profile_key is not None
    assert translator.known.profile_key["draft"]["name"] == str(pair["draft"])
    assert "MarianMTModel" in repr(translator)


def test_a_missing_sentencepiece_is_named(translation, monkeypatch):
    def without(*_, **__):
        raise ImportError("\nMarianTokenizer requires the SentencePiece library but it was not found")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", without)
    with pytest.raises(ModelError, match=r"needs the package sentencepiece.*\[translate\]"):
        opened(translation, None)
