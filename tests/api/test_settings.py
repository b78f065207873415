"""Settings: what cannot be is refused in a sentence that names it, and says what was meant or where it belongs."""

import inspect
from fractions import Fraction

import numpy as np
import pytest
import torch

import draftwood
from draftwood import Limits, LoadOptions, LogprobSettings, Method, Pair, Request, Sampling, TraceSettings, Translator
from draftwood.core.errors import ConfigError
from tests.helpers import decoder, tiny_runner

INFINITE, NAN = float("inf"), float("nan")
REFUSED = [
    (Sampling, "temperature", -0.1, "temperature is -0.1: give a number 0 or more"),
    (Sampling, "temperature", NAN, "temperature is nan: give a finite number"),
    (Sampling, "temperature", 10**400, "temperature is .*: give a finite number"),
    (Sampling, "temperature", 1e-10, "0.000001 or more"),
    (Sampling, "temperature", "hot", "temperature is 'hot'"),
    (Sampling, "top_k", -1, "top_k is -1"),
    (Sampling, "top_k", 1.5, "top_k is 1.5"),
    (Sampling, "top_p", 0.0, "top_p is 0.0: give a number above 0"),
    (Sampling, "top_p", 1.1, "top_p is 1.1"),
    (Sampling, "min_p", -0.5, "min_p is -0.5"),
    (Sampling, "repetition_penalty", 0.0, "repetition_penalty is 0.0"),
    (Sampling, "presence_penalty", INFINITE, "presence_penalty is inf: give a finite number"),
    (Sampling, "logit_bias", {5: INFINITE}, "logit_bias of token 5"),
    (Sampling, "logit_bias", {"5": 1.0}, "a token of logit_bias is '5'"),
    (Sampling, "processors", print, "processors is <built-in"),
    (Method, "nodes", "x", "nodes is 'x': give a whole number"),
    (Method, "nodes", True, "nodes is True: give a whole number"),
    (Method, "method", None, "method is None: choose one of"),
    (Method, "shape", 4, "shape is 4: give a text such as '4'"),
    (Method, "tau", 1e300, "which 32-bit floating point cannot hold"),
    (Limits, "ignore_eos", "no", "ignore_eos is 'no': give True or False"),
    (Limits, "stop", "END", "stop is 'END': give a list or tuple of texts"),
    (Limits, "stop", ("",), "empty text"),
    (Limits, "stop_token_ids", 5, "stop_token_ids is 5"),
    (Limits, "stop_token_ids", (-1,), r"stop_token_ids holds -1, and token ids begin at 0"),
    (Limits, "max_new_tokens", 0, "max_new_tokens is 0: give 1 or more"),
    (Limits, "max_new_tokens", 20.5, "max_new_tokens is 20.5: give a whole number"),
    (LoadOptions, "dtype", torch.float32, "dtype is torch.float32: choose one of auto, float32"),
    (LoadOptions, "dtype", "int3", "dtype is 'int3': choose one of"),
    (LoadOptions, "backend", "jax", "backend is 'jax': choose one of auto, native, torch"),
    (LoadOptions, "weights", 8, "weights is 8: choose one of same, int8, int4"),
    (LoadOptions, "device", 0, "device is 0: give a text such as 'auto'"),
    (LoadOptions, "profile", None, "profile is None: give a text"),
    (LoadOptions, "trust_remote_code", "no", "trust_remote_code is 'no': give True or False"),
    (LoadOptions, "threads", 0, "threads is 0: give 1 or more"),
    (LoadOptions, "threads", 3_000_000_000, "give at most 1024"),
]
FACTORS = ["temperature", "top_p", "min_p", "repetition_penalty"]
ADDED = ["presence_penalty", "frequency_penalty", "logit_bias"]
OTHER_TYPES = {
    "logit_bias": [1.0, [(1, 2.0)], {5: "x"}], "temperature": [None, True], "top_k": ["x"], "top_p": [[0.5]], "min_p": [1j],
    "processors": [5, "ab"], "presence_penalty": [{}], "beta": ["x", 2.5], "tau": [[1], True],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "value", "said"), REFUSED)
def test_values_that_cannot_be_are_refused_by_name(kind, name, value, said):
    more = {"method": "chain"} if name == "shape" else {}
    with pytest.raises(ConfigError, match=said):
        kind(**{name: value}, **more)


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_values_of_other_types_are_refused_by_name(name):
    for value in OTHER_TYPES[name]:
        with pytest.raises(ConfigError, match=name) as caught:
            (Method if name in ("beta", "tau") else Sampling)(**{name: value})
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", [*FACTORS, *ADDED])
def test_numbers_that_are_zero_or_infinite_in_float32_are_refused_by_name(name):
    for value in (1e39, 1e300, -1e39, *((1e-50, 1e-40, 5e-324) if name in FACTORS else ())):
        with pytest.raises(ConfigError, match=rf"{name}.* is .*, which 32-bit floating point cannot hold"):
            Sampling(**{name: {5: value} if name == "logit_bias" else value})


def test_a_bias_that_only_the_temperature_makes_too_large_is_refused():
    with pytest.raises(ConfigError, match=r"token 5 is 3e\+38, and temperature 0\.5 makes it more than 32-bit"):
        Sampling(temperature=0.5, logit_bias={5: 3e38})
    Sampling(temperature=0.5, logit_bias={5: -INFINITE})
    Sampling(temperature=0.0, logit_bias={5: 3e38})
    Sampling(presence_penalty=1e-50, frequency_penalty=-1e-50, logit_bias={5: 1e-50})  # what is added may round to zero


def test_numbers_of_other_libraries_are_numbers():
    assert Sampling(temperature=np.float32(0.5), top_p=Fraction(1, 2)).temperature == 0.5


WAYS = [("ngram", "traversal"), ("ngram", "auto"), ("rsd-s", "recursive"), ("rsd-s", "traversal"), ("adaptive", "auto")]
EXTREME = [
    {"top_p": 1.2e-38}, {"min_p": 1.2e-38}, {"temperature": 1e-6}, {"temperature": 3.4e38}, {"logit_bias": {5: 3.4e38}},
    {"logit_bias": {5: -3.4e38}}, {"top_k": 10**20}, {"presence_penalty": 3.4e38}, {"temperature": 1e-6, "top_p": 1.2e-38},
    {"temperature": 10**30, "frequency_penalty": 10**30}, {"temperature": Fraction(1, 3), "presence_penalty": Fraction(1)},
]  # fmt: skip


@pytest.mark.usefixtures("always_drafts")
@pytest.mark.filterwarnings("ignore:overflow encountered in reduce")
@pytest.mark.parametrize("settings", EXTREME, ids=str)
def test_the_most_extreme_values_that_it_holds_work_with_every_way_of_drafting(settings):
    target, draft = (tiny_runner(20, seed, dtype=torch.float32) for seed in (1, 2))
    sampling = Sampling(**settings)
    for method, verifier in WAYS:
        made = decoder(target, draft, method, verifier=verifier)
        for seed in range(3):
            request = Request(prompt=[1, 2, 3, 1, 2, 3, 1, 2], seed=seed, limits=Limits(max_new_tokens=8))
            [result] = made.generate([request], sampling)
            assert len(result.token_ids) == 8
            if settings.get("top_p") and "temperature" not in settings:  # only the best token is left
                best = target.model(torch.tensor([[*request.prompt, *result.token_ids]])).logits[0, 7:-1].argmax(-1)
                assert result.token_ids == best.tolist()


# Arguments that do not exist --------------------------------------------------------------------------------------------

PUBLIC = [
    *(Pair.generate, Pair.stream, Pair.astream, Pair.chat, Translator.translate, Translator.stream, Translator.astream),
    *(draftwood.load, draftwood.load_translator, draftwood.hf.recipe),
    *(Sampling, Limits, Method, LoadOptions, LogprobSettings, TraceSettings),
]


@pytest.mark.parametrize("public", PUBLIC, ids=lambda one: one.__qualname__)
def test_an_unknown_argument_is_named_with_those_that_exist(public):
    with pytest.raises(ConfigError, match=rf"^{public.__name__} has no argument 'zzzz': it takes \w+") as caught:
        public(None, zzzz=1)
    assert isinstance(caught.value, TypeError)  # as for any other function
    assert "**" not in str(inspect.signature(public))


@pytest.mark.parametrize(("public", "given", "said"), [
    (Pair.generate, "max_tokens", "give max_new_tokens"),
    (Pair.generate, "verifier", "give method=Method(verifier=...)"),
    (Pair.generate, "ignore_eos", "give limits=Limits(ignore_eos=...)"),
    (Pair.generate, "presence_penalty", "give sampling=Sampling(presence_penalty=...)"),
    (Pair.generate, "top_logprobs", "give logprobs"),
    (Pair.generate, "temprature", "did you mean temperature?"),
    (Pair.generate, "verifer", "did you mean verifier? give method=Method(verifier=...)"),
    (Pair.generate, "do_sample", "give temperature=0 for the most likely text, and a higher temperature to sample"),
    (Pair.generate, "backend", "it is a setting of LoadOptions"),
    (Sampling, "logits_processor", "give processors"),
    (Sampling, "max_new_tokens", "it is a setting of Limits"),
    (Method, "verifer", "did you mean verifier?"),
    (draftwood.load, "backend", "give options=LoadOptions(backend=...)"),
    (draftwood.load, "draft_model", "give draft"),
    (draftwood.load, "model", "give target"),
    (draftwood.load, "token", "the environment variable HF_TOKEN holds the one of the hub"),
    (Pair.generate, "eos_token_id", "give limits=Limits(stop_token_ids=...)"),
    (Pair.generate, "min_tokens", "limits=Limits(ignore_eos=True) writes up to max_new_tokens"),
    (Pair.generate, "stream", "stream gives the text piece by piece"),
    (Pair.chat, "system", 'begin messages with {"role": "system", "content": ...}'),
    (Pair.chat, "tools", "draftwood serve takes tools, and reads the calls of an answer"),
])  # fmt: skip
def test_it_is_said_what_to_give_instead(public, given, said):
    with pytest.raises(ConfigError) as caught:
        public(**{given: 1})
    assert str(caught.value) == f"{public.__name__} has no argument {given!r}: {said}"


def test_options_of_loading_are_settings_too():
    for load in (draftwood.load, draftwood.load_translator):
        with pytest.raises(ConfigError, match=r"^options: LoadOptions has no argument 'dytpe': did you mean dtype\?$"):
            load(options={"dytpe": "float32"})
        with pytest.raises(ConfigError, match="options is 'float32': give a LoadOptions, or a mapping"):
            load(options="float32")
