"""What has one meaning is accepted from Python as people write it; everything else is refused in a sentence."""

import copy
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from draftwood import ConfigError, Limits, LoadOptions, Method, Pair, Sampling, Translator, hf, load, load_translator
from draftwood.engine.knowledge import Known
from tests.faults.folders import save_tiny

ON_CPU = LoadOptions(dtype="float32", device="cpu", backend="torch")
SHORT = Limits(max_new_tokens=8)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    target, draft = save_tiny(folder / "target", seed=1), save_tiny(folder / "draft", layers=1, seed=2)
    loaded = load(target, draft, options=ON_CPU)
    loaded.target.model.generation_config.update(do_sample=True, temperature=0.8, min_p=0.02, repetition_penalty=1.2)
    return Pair(loaded.target.model, loaded.draft.model, loaded.tokenizer)


@pytest.fixture(scope="module")
def translator(translation):
    return load_translator(translation / "target", translation / "block", options=ON_CPU)


# One meaning ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"method": "rsd-s"}, {"method": Method(method="rsd-s")}),
        ({"method": {"method": "rsd-s", "shape": "2x2"}}, {"method": Method(method="rsd-s", shape="2x2")}),
        ({"sampling": {"temperature": 0.7}}, {"sampling": Sampling(temperature=0.7)}),
        ({"limits": {"max_new_tokens": 5}}, {"limits": Limits(max_new_tokens=5)}),
        ({"max_new_tokens": 5}, {"limits": Limits(max_new_tokens=5)}),
        ({"stop": "e", "max_new_tokens": 40}, {"limits": Limits(stop=("e",), max_new_tokens=40)}),
        ({"stop": ["a", "e"]}, {"limits": Limits(stop=("a", "e"))}),
    ],
    ids=str,
)
def test_names_mappings_and_single_settings_stand_for_what_they_mean(pair, written, meant):
    default = {"limits": SHORT} if not {"limits", "max_new_tokens", "stop"} & written.keys() else {}
    wanted = pair.generate("the fox ran", seed=3, **{**default, **meant})
    assert pair.generate("the fox ran", seed=3, **{**default, **written}).token_ids == wanted.token_ids
    pieces = pair.stream("the fox ran", seed=3, **{**default, **written})
    assert [token for piece in pieces for token in piece.tokens] == wanted.token_ids


def test_options_of_loading_may_be_a_mapping(tmp_path, translation):
    save_tiny(tmp_path)
    assert load(tmp_path, options={"dtype": "float64", "device": "cpu"}).target.model.dtype == torch.float64
    options = {"dtype": "float64", "device": "cpu"}
    assert load_translator(translation / "target", options=options).target.model.dtype == torch.float64


def test_truncation_of_greedy_translations_is_refused(translation):
    translator = load_translator(translation / "target", options={"backend": "torch"})
    with pytest.raises(ConfigError, match=r"top_p was given, but translations are greedy .*: give a temperature too"):
        translator.translate("a b", top_p=0.9)
    assert translator.translate("a b", top_p=0.9, temperature=0.5, seed=1, max_new_tokens=3).token_ids


def test_the_recipe_for_transformers_takes_a_name_too():
    assert hf.recipe(method="ngram").method == Method(method="ngram")


IDS = [3, 1, 4]


@pytest.mark.parametrize("one", [IDS, tuple(IDS), np.array(IDS), torch.tensor(IDS), [np.int64(i) for i in IDS]], ids=repr)
def test_token_ids_are_a_prompt(pair, one):
    assert pair.encode(one) == IDS
    wanted = pair.generate(pair.tokenizer.decode(IDS), seed=1, limits=SHORT)
    assert pair.encode(pair.tokenizer.decode(IDS)) == IDS, "else the comparison says nothing"
    found = pair.generate(one, seed=np.int64(1), limits=SHORT)
    assert (found.token_ids, found.text, found.seed) == (wanted.token_ids, wanted.text, 1)
    assert [token for piece in pair.stream(one, seed=1, limits=SHORT) for token in piece.tokens] == wanted.token_ids


@pytest.mark.parametrize(
    "several", [[[3, 1, 4], [1, 5, 9]], np.array([[3, 1, 4], [1, 5, 9]]), [torch.tensor([3, 1, 4]), (1, 5, 9)]], ids=repr
)
def test_lists_of_token_ids_are_several_prompts(pair, several):
    alone = [pair.generate(ids, seed=1 + i, limits=SHORT).token_ids for i, ids in enumerate([[3, 1, 4], [1, 5, 9]])]
    assert [result.token_ids for result in pair.generate(several, seed=1, limits=SHORT)] == alone
    assert pair.generate([], limits=SHORT) == []
    assert len(pair.generate(torch.tensor([[1, 2]]), limits=SHORT)) == 1


def test_translations_take_the_same(translator):
    text = "ein rotes Haus"
    ids = translator.tokenizer(text)["input_ids"]
    wanted = translator.translate(text).token_ids
    assert len(wanted) > 2
    assert translator.translate(ids).token_ids == wanted
    assert [result.token_ids for result in translator.translate([ids, text])] == [wanted, wanted]
    assert translator.translate(text, max_new_tokens=2).token_ids == wanted[:2]
    assert translator.translate(text, limits={"max_new_tokens": 1}, method="ngram").token_ids == wanted[:1]
    drawn = [translator.translate(text, seed=1, **way) for way in ({"temperature": 9.0}, {"sampling": {"temperature": 9.0}})]
    assert drawn[0].token_ids == drawn[1].token_ids != wanted
    assert [token for piece in translator.stream(ids, max_new_tokens=2) for token in piece.tokens] == wanted[:2]


# Refused ----------------------------------------------------------------------------------------------------------------


def refuses(said):
    return pytest.raises(ConfigError, match=re.escape(said))


REFUSED = [
    ({"sampling": 0.7}, "sampling is 0.7: give a Sampling, or a mapping of its settings"),
    ({"sampling": {"temprature": 0.7}}, "Sampling has no argument 'temprature': did you mean temperature?"),
    ({"limits": 5}, "limits is 5: give a Limits, or a mapping"),
    ({"limits": {"max_tokens": 5}}, "Limits has no argument 'max_tokens': give max_new_tokens"),
    ({"limits": {"max_new_tokens": "x"}}, "max_new_tokens is 'x': give a whole number"),
    ({"method": "magic"}, "method is 'magic': choose one of auto, ar, chain"),
    ({"method": 3}, "method is 3: give a Method, or a mapping"),
    ({"method": {"tree": 3}}, "Method has no argument 'tree': it takes method, verifier, "),
    ({"sampling": Sampling(), "temperature": 0.5}, "both sampling and temperature were given: put temperature into"),
    ({"limits": Limits(), "max_new_tokens": 5}, "both limits and max_new_tokens were given"),
    ({"limits": {}, "stop": "x"}, "both limits and stop were given"),
    ({"seed": "x"}, "seed is 'x': give a whole number"),
    ({"seed": -1}, "seed is -1"),
]


@pytest.mark.parametrize(("settings", "said"), REFUSED, ids=[said[:40] for _, said in REFUSED])
def test_wrong_settings_are_refused_in_a_sentence(pair, translator, settings, said):
    calls = [
        lambda: pair.generate("the fox", **settings),
        lambda: list(pair.stream("the fox", **settings)),
        lambda: translator.translate("ein Haus", **settings),
        lambda: list(translator.stream("ein Haus", **settings)),
    ]
    for call in calls:
        with refuses(said):
            call()


@pytest.mark.parametrize(
    "prompt",
    [5, None, 0.5, b"the", {"the": 1}, [1, "a"], [1.0, 2.0], [True], [[[1]]], np.array([0.5]), torch.zeros(1, 1, 1), {"a"}],
    ids=repr,
)
def test_what_is_no_prompt_is_refused(pair, translator, prompt):
    for call in (pair.generate, translator.translate):
        with pytest.raises(ConfigError, match=r"(prompt|text) is .*: give a text, its token ids, or a list of several"):
            call(prompt)
    for call in (pair.encode, translator.encode):
        with pytest.raises(ConfigError, match="give a text, or its token ids"):
            call(prompt)


def test_texts_and_token_ids_that_cannot_be_read_are_refused(pair, translator):
    cases = [
        (pair.generate, pair.tokenizer("the fox"), r"its token ids \(of what a tokenizer made, its input_ids\)"),
        (pair.generate, "\udcff", "is no Unicode text"),
        (translator.translate, "\udcff", "is no Unicode text"),
        *((pair.generate, [1, n], f"holds token {n}, but the target knows 0 to 279") for n in (280, -1, 10**30)),
        (translator.translate, [1, 99999], "the sentence holds token 99999, but the target's encoder knows 0 to"),
    ]
    for call, given, said in cases:
        with pytest.raises(ConfigError, match=said):
            call(given)
    for session, name in ((pair, "prompt"), (translator, "sentence")):
        with pytest.raises(ConfigError, match=f"^{name} 1: "):
            session.requests(["the fox", 7], None, [1, 2])


def test_a_draft_or_a_streamer_of_a_recipe_that_is_none_is_refused():
    for draft in (5, "a name", object()):
        with pytest.raises(ConfigError, match=r"the draft of a recipe is .*: give a model of transformers, or leave it out"):
            hf.recipe(draft)
    for streamer in ("stdout", 7, print, object()):
        with pytest.raises(ConfigError, match=r"streamer is .*: give an object with put and end"):
            hf.recipe(streamer=streamer)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": "gpt2"}, "model is 'gpt2': give a model of transformers; names and folders are for load"),
        ({"model": None}, "model is None: give a model"),
        ({"draft_model": "gpt2"}, "draft_model is 'gpt2': give a model"),
        ({"tokenizer": "gpt2"}, "tokenizer is 'gpt2': give a tokenizer of transformers"),
        ({"tokenizer": {}}, "tokenizer is {}: give a tokenizer"),
        ({"known": "auto"}, "known is 'auto': give"),
    ],
    ids=str,
)
def test_wrong_parts_of_a_pair_or_a_translator_are_refused(pair, translator, wrong, said):
    parts = {"model": pair.target.model, "draft_model": None, "tokenizer": pair.tokenizer}
    with refuses(said):
        Pair(**{**parts, **wrong})
    parts |= {"model": translator.model, "tokenizer": translator.tokenizer}
    with refuses(said):
        Translator(**{**parts, **wrong})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("the fox", None, [1]), "s is 'the fox': give a list"),
        ((None, None, [1]), "s is None: give a list"),
        ((["the fox"], None, 1), "seeds is 1: give a list"),
        ((["the fox"], None, [1, 2]), "2 seeds came for 1 "),
        ((["the fox"], None, ["x"]), "seed is 'x': give a whole number"),
        ((["the fox"], 7, [1]), "limits is 7: give a Limits"),
        (([7], None, [1]), "is 7: give a text, or its token ids"),
    ],
    ids=str,
)
def test_wrong_arguments_of_requests_are_refused(pair, translator, arguments, said):
    for session in (pair, translator):
        with refuses(said):
            session.requests(*arguments)


# What a notebook shows, and what another process gets -------------------------------------------------------------------


def test_a_draft_text_is_drafted_from_where_tune_chose_no_drafts(pair, monkeypatch, always_drafts):
    monkeypatch.setattr(pair, "known", Known(choices={1.0: Method(method="ar")}))
    assert [pair.method().method, pair.method(draft_text="the fox").method] == ["ar", "adaptive"]
    assert pair.generate("the fox", draft_text="the fox ran", seed=1, limits=SHORT).stats.drafted
    with pytest.raises(ConfigError, match="not for ar: leave it out"):
        pair.method("ar", draft_text="the fox")


def test_a_piece_and_a_traced_result_are_shown_without_their_rounds(pair):
    [*pieces] = pair.stream(IDS, limits=SHORT, method="rsd-s")
    result = pair.generate(IDS, limits=SHORT, trace=True)
    assert all(len(repr(one)) < 700 for one in [*pieces, result])
    assert repr(pieces[0].text) in repr(pieces[0])


@pytest.mark.parametrize("kind", ["pair", "translator"])
def test_a_session_is_not_sent_to_another_process_and_its_results_are(kind, request):
    session = request.getfixturevalue(kind)
    for send in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=f"{type(session).__name__} cannot be copied, pickled"):
            send(session)
    with pytest.raises(TypeError, match="load one in each process"):
        pickle.dumps(session.generate)
    result = session.generate("a fox" if kind == "pair" else "ein Fuchs", max_new_tokens=4)
    assert pickle.loads(pickle.dumps(result)) == result


def test_the_bundled_models_load_without_a_word():
    code = "from draftwood import *; load(options={'backend': 'torch'}); load_translator(options={'backend': 'torch'}); "
    run = subprocess.run([sys.executable, "-c", f"{code}load_translator()"], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "")
