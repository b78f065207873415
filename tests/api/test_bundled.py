"""The pair that ships with the package, with its real tokenizer."""

from pathlib import Path

import pytest
import torch

import draftwood
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.loading.names import bundled_pairs
from draftwood.sampling.settings import Sampling

PROMPTS = [
    "Once upon a time",
    "Question: Tom has 3 apples and buys 4 more. How many apples has he?\nAnswer:",
    "The old king",
]


@pytest.fixture(scope="module")
def pair():
    return draftwood.load()


@pytest.mark.parametrize(
    ("name", "most", "commands", "licence"),
    [
        ("language", 32, {"target": "train", "draft": "train"}, "CC BY 4.0"),
        ("translation", 24, {"target": "train translator", "draft": "train spec-drafter"}, "CC BY 2.0 FR"),
    ],
)
def test_a_pair_is_small_and_has_model_cards(name, most, commands, licence):
    folders = bundled_pairs()[name]
    size = sum(f.stat().st_size for f in Path(folders["target"]).parent.rglob("*") if f.is_file())
    assert size < most * 2**20
    for part, command in commands.items():
        card = (folders[part] / "README.md").read_text(encoding="utf-8")
        assert f"draftwood {command}" in card
        assert "commit 61d500a0" in card
        assert licence in card


def test_greedy_texts_are_generates_texts(pair):
    sampling, limits = Sampling(temperature=0.0), Limits(max_new_tokens=40)
    ours = pair.generate(PROMPTS, sampling=sampling, limits=limits, method=Method(method="shared-noise", nodes=10))
    for prompt, result in zip(PROMPTS, ours, strict=True):
        ids = torch.tensor([pair.encode(prompt)])
        with torch.no_grad():
            plain = pair.target.model.generate(ids, max_new_tokens=40, do_sample=False)[0, ids.shape[1] :].tolist()
        assert result.token_ids == plain
        assert result.stats.block_efficiency > 1.5


SENTENCES = ["Guten Morgen.", "Ich möchte morgen mit meinem Bruder in die Stadt fahren.", "Wo ist der Bahnhof?"]


@pytest.fixture(scope="module")
def translator():
    return draftwood.load_translator()


def test_translations_are_the_targets_own_greedy_ones(translator):
    for text, result in zip(SENTENCES, translator.translate(SENTENCES), strict=True):
        ids = torch.tensor([translator.encode(text)])
        with torch.no_grad():
            plain = translator.model.generate(ids, num_beams=1, do_sample=False)[0, 1:].tolist()
        assert result.token_ids == plain
        assert result.lossless
    assert result.stats.block_efficiency > 1.5
