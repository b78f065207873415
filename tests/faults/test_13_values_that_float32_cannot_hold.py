"""Numbers that are zero or infinite in 32-bit floating point are refused by name; what it can hold works everywhere."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import ConfigError, Limits, Method, Request, Sampling
from draftwood.draft import Drafter
from tests.cli.conftest import Run
from tests.cli.conftest import models as models
from tests.cli.conftest import pair as pair
from tests.cli.conftest import run as run
from tests.helpers import decoder, tiny_runner

pytestmark = pytest.mark.usefixtures("always_drafts")

WAYS = [("ngram", "traversal"), ("ngram", "auto"), ("rsd-s", "recursive"), ("rsd-s", "traversal"), ("adaptive", "auto")]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method", "ngram", "--verifier", "traversal", "--top-p", "1e-50"], "top_p is 1e-50, which 32-bit"),
        (["--logit-bias", "5=1e300"], "logit_bias of token 5 is 1e+300, which 32-bit"),
        (["--temperature", "1e300"], "temperature is 1e+300, which 32-bit"),
        (["--repetition-penalty", "1e-300"], "repetition_penalty is 1e-300, which 32-bit"),
    ],
)
def test_options_that_float32_cannot_hold_are_refused_in_one_sentence(
    run: Run, pair: list[str], options: list[str], said: str
) -> None:
    result = run("generate", *pair, "the fox", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert "floating point cannot hold: give " in result.stderr


FACTORS = ["temperature", "top_p", "min_p", "repetition_penalty"]
ADDED = ["presence_penalty", "frequency_penalty", "logit_bias"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in [*FACTORS, *ADDED] for value in (1e39, 1e300, -1e39)),
        *((name, value) for name in FACTORS for value in (1e-50, 1e-40, 5e-324)),
    ],
)
def test_every_setting_is_looked_at(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{name}.* is .*, which 32-bit floating point cannot hold"):
        Sampling(**{name: {5: value} if name == "logit_bias" else value})  # type: ignore[arg-type]


def test_what_is_only_added_may_round_to_zero() -> None:
    Sampling(presence_penalty=1e-50, frequency_penalty=-1e-50, logit_bias={5: 1e-50})


def test_numbers_of_a_method_are_looked_at() -> None:
    for options in ({"min_gain": 1e39, "method": "chain"}, {"tau": 1e300}):
        with pytest.raises(ConfigError, match="which 32-bit floating point cannot hold"):
            Method(**options)  # type: ignore[arg-type]


def test_a_bias_that_only_the_temperature_makes_too_large_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"token 5 is 3e\+38, and temperature 0\.5 makes it more than 32-bit"):
        Sampling(temperature=0.5, logit_bias={5: 3e38})
    Sampling(temperature=0.5, logit_bias={5: -float("inf")})
    Sampling(temperature=0.0, logit_bias={5: 3e38})


EXTREME: list[dict[str, Any]] = [
    {"top_p": 1.2e-38}, {"min_p": 1.2e-38}, {"temperature": 1e-6}, {"temperature": 3.4e38}, {"logit_bias": {5: 3.4e38}},
    {"logit_bias": {5: -3.4e38}}, {"top_k": 10**20}, {"presence_penalty": 3.4e38}, {"temperature": 1e-6, "top_p": 1.2e-38},
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow encountered in reduce")
@pytest.mark.parametrize("settings", EXTREME, ids=str)
def test_the_most_extreme_values_that_it_holds_work_with_every_way_of_drafting(settings: dict[str, Any]) -> None:
    target, draft = (tiny_runner(20, seed, dtype=torch.float32) for seed in (1, 2))
    sampling = Sampling(**settings)
    for method, verifier in WAYS:
        made = decoder(target, draft, method, verifier=verifier)
        assert isinstance(made.pipeline.drafter, Drafter)
        for seed in range(3):
            request = Request(prompt=[1, 2, 3, 1, 2, 3, 1, 2], seed=seed, limits=Limits(max_new_tokens=8))
            [result] = made.generate([request], sampling)
            assert len(result.token_ids) == 8
            if settings.get("top_p") and "temperature" not in settings:  # only the best token is left
                best = target.model(torch.tensor([[*request.prompt, *result.token_ids]])).logits[0, 7:-1].argmax(-1)
                assert result.token_ids == best.tolist()


def test_numbers_of_other_libraries_are_numbers() -> None:
    assert Sampling(temperature=np.float32(0.5), top_p=Fraction(1, 2)).temperature == 0.5


def test_a_number_that_no_float_holds_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"temperature is .*: give a finite number"):
        Sampling(temperature=10**400)
