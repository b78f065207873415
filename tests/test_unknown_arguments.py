"""An argument that does not exist is refused in a sentence that says which one was meant, or where it belongs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import draftwood
from draftwood import Limits, LoadOptions, LogprobSettings, Method, Pair, Sampling, TraceSettings, Translator
from draftwood.core.errors import ConfigError

PUBLIC = [
    *(Pair.generate, Pair.stream, Pair.astream, Pair.chat, Translator.generate, Translator.stream, Translator.astream),
    *(draftwood.load, draftwood.load_translator, draftwood.hf.recipe),
    *(Sampling, Limits, Method, LoadOptions, LogprobSettings, TraceSettings),
]


@pytest.mark.parametrize("public", PUBLIC, ids=lambda one: one.__qualname__)
def test_an_unknown_argument_is_named_with_those_that_exist(public: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=rf"^{public.__name__} has no argument 'zzzz': it takes \w+") as caught:
        public(None, zzzz=1)
    assert isinstance(caught.value, TypeError)  # as for any other function
    assert "**" not in str(inspect.signature(public))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_tokens": 5}, "generate has no argument 'max_tokens': give max_new_tokens"),
        ({"verifier": "coupled"}, "give method=Method(verifier=...)"),
        ({"ignore_eos": True}, "give limits=Limits(ignore_eos=...)"),
        ({"presence_penalty": 1.0}, "give sampling=Sampling(presence_penalty=...)"),
        ({"top_logprobs": 3}, "give logprobs"),
        ({"temprature": 0.7}, "did you mean temperature?"),
        ({"verifer": "coupled"}, "did you mean verifier? give method=Method(verifier=...)"),
        ({"do_sample": False}, "give temperature=0 for the most likely text"),
        ({"backend": "torch"}, "it is a setting of LoadOptions"),
    ],
)
def test_it_is_said_what_to_give_to_generate(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Pair.generate(None, "Once", **given)
    assert said in str(caught.value)


def test_settings_of_one_kind_are_told_from_those_of_another() -> None:
    for run, said in (
        (lambda: Sampling(max_new_tokens=3), "Sampling has no argument 'max_new_tokens': it is a setting of Limits"),
        (lambda: Limits(max_tokens=3), "Limits has no argument 'max_tokens': give max_new_tokens"),
        (lambda: Method(verifer="x"), "Method has no argument 'verifer': did you mean verifier?"),
        (lambda: draftwood.load(backend="torch"), "load has no argument 'backend': give options=LoadOptions(backend=...)"),
        (lambda: draftwood.load("a", draft_model="b"), "load has no argument 'draft_model': give draft"),
    ):
        with pytest.raises(ConfigError) as caught:
            run()
        assert str(caught.value) == said


def test_settings_in_a_mapping_are_advised_too() -> None:
    with pytest.raises(ConfigError, match=r"^options holds 'dytpe', which .*: dtype, .*; did you mean dtype\?$"):
        draftwood.load(options={"dytpe": "float32"})
