"""A cost-inflated copy says what the original says, is labelled, and is drafted for like the original."""

import json

import pytest
import torch
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

import draftwood
from benchmarks.config import InflateConfig
from benchmarks.inflate import Size, inflated, label_of, parameters_of, size_for, size_of, write_pair
from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.settings import LoadOptions
from draftwood.loading.names import bundled_pairs
from tests.benchmarks.tiny import call
from tests.differences import difference
from tests.helpers import tiny_gpt

CLOSE = 1e-4
SIZES = [
    Size(width=32, layers=2, heads=4, feed_forward=48),  # as it is
    Size(width=64, layers=2, heads=4, feed_forward=48),
    Size(width=32, layers=2, heads=6, feed_forward=48),
    Size(width=32, layers=5, heads=4, feed_forward=160),
    Size(width=88, layers=4, heads=8, feed_forward=100),
]


def tiny(*, tied=True, rms_norm_eps=0.05, **settings):
    """A model whose epsilon counts, as its stream is small."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, max_position_embeddings=64, initializer_range=0.3, tie_word_embeddings=tied,
        bos_token_id=0, eos_token_id=0, pad_token_id=0, rms_norm_eps=rms_norm_eps, **settings,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.3, 2.0)
    return model


def off(model, other):
    tokens = torch.randint(0, 50, (3, 40), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return difference(model(tokens).logits.double(), other(tokens).logits.double())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_scores_are_the_originals(size, tied):
    model = tiny(tied=tied)
    grown = inflated(model, size, seed=3)
    assert size_of(grown.config) == size
    assert sum(weight.numel() for weight in grown.parameters()) == parameters_of(model.config, size)
    assert off(model, grown) < CLOSE


def test_controls_what_matters_is_seen_and_what_does_not_is_random():
    model, size = tiny(), SIZES[-1]
    other = inflated(model, size, seed=4)
    assert off(model, other) < CLOSE  # other random weights change nothing
    writing = ("o_proj.weight", "down_proj.weight")
    reading = [weight for name, weight in other.named_parameters() if not name.endswith(writing)]
    assert all((weight[1:50] != 0).any(-1).all() for weight in reading)
    third = inflated(model, size, seed=3).model.layers[3].mlp.up_proj.weight
    assert (other.model.layers[3].mlp.up_proj.weight != third).all()
    with torch.no_grad():
        other.model.layers[3].mlp.down_proj.weight[3] = 10.0  # writes what is to be multiplied by zero
    assert off(model, other) > 100 * CLOSE
    unscaled, same_epsilon = inflated(model, size, seed=3), inflated(model, size, seed=3)
    with torch.no_grad():
        unscaled.model.norm.weight[:32] = model.model.norm.weight
    for module in same_epsilon.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = model.config.rms_norm_eps
    assert off(model, unscaled) > 100 * CLOSE
    assert off(model, same_epsilon) > 100 * CLOSE


def test_a_model_in_bfloat16_keeps_its_distribution_through_a_folder(tmp_path):
    model = tiny().to(torch.bfloat16)
    model.save_pretrained(tmp_path / "own")
    inflated(model, SIZES[-1], seed=0).save_pretrained(tmp_path / "grown")
    own, read = (LlamaForCausalLM.from_pretrained(tmp_path / n, dtype=torch.float32).eval() for n in ("own", "grown"))
    assert {weight.dtype for weight in read.parameters()} == {torch.float32}
    assert off(own, read) < CLOSE


def test_what_would_shrink_or_not_fit_is_refused():
    for model, size, message in (
        (tiny(), Size(width=16, layers=2, heads=4, feed_forward=48), "width is 16, but the model has 32"),
        (tiny(), Size(width=32, layers=1, heads=4, feed_forward=48), "layers is 1"),
        (tiny(), Size(width=32, layers=2, heads=5, feed_forward=48), "2 query heads share keys and values"),
        (tiny_gpt(20, 0), SIZES[0], "'gpt2' cannot be inflated"),
        (tiny(attention_bias=True), SIZES[0], "with biases"),
    ):
        with pytest.raises((ConfigError, ModelError), match=message):
            inflated(model, size, seed=0)


@pytest.mark.parametrize("wanted", ["20M", "110000000", "410M", "1B"])
def test_a_size_has_the_parameters_and_proportions_that_were_asked_for(wanted):
    config = AutoConfig.from_pretrained(str(bundled_pairs()["language"]["target"]))
    size = size_for(config, InflateConfig(parameters=wanted).count())
    count = {"20M": 20e6, "110000000": 110e6, "410M": 410e6, "1B": 1e9}[wanted]
    assert abs(parameters_of(config, size) / count - 1) < 0.01
    assert 2 < size.feed_forward / size.width < 4
    with pytest.raises(ConfigError, match="only grows"):
        size_for(config, 9_000_000)


@pytest.mark.usefixtures("always_drafts")
def test_the_bundled_pair_writes_the_same_texts_from_inflated_folders(tmp_path):
    written = tmp_path / "pair"
    run = call("inflate", "--parameters", "14M", "--context", 600, "--out", written)
    assert f"{written / 'target'}: cost-inflated copy of language/target" in run.output
    config = json.loads((written / "target" / "config.json").read_text())
    assert "for benchmarks only" in config["cost_inflated"]
    assert "for benchmarks only" in (written / "target" / "README.md").read_text().splitlines()[0]
    options = LoadOptions(profile="none")
    pair, own = draftwood.load(written / "target", written / "draft", options=options), draftwood.load(options=options)
    assert label_of(pair.target.model) == config["cost_inflated"]
    assert label_of(pair.draft.model) is label_of(own.target.model) is None
    assert (pair.target.max_length, pair.draft.max_length, own.target.max_length) == (600, 600, 512)
    limits, sampling = draftwood.Limits(max_new_tokens=24), draftwood.Sampling(temperature=0.0)
    texts = [p.generate("Once upon a time", sampling=sampling, limits=limits) for p in (pair, own)]
    assert texts[0].token_ids == texts[1].token_ids
    assert texts[0].stats.block_efficiency > 1
    with pytest.raises(ConfigError, match="is not empty"):
        list(write_pair(InflateConfig(out=written)))
