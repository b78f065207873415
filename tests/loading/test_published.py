"""Published drafters: their logits are those of speculators, in every format; what cannot be honoured is refused by name."""

import json
import logging
from itertools import product

import pytest
import torch
from safetensors.torch import save_file

import draftwood
from draftwood.core.errors import ModelError, PairingError
from draftwood.core.scores import dense
from draftwood.loading.drafts import load_published
from draftwood.loading.published_configs import published_format
from draftwood.runners.factory import make_runners
from tests.differences import difference
from tests.faults.folders import tiny_llama
from tests.helpers import rows_of
from tests.loading import published_cases as cases
from tests.loading.published_cases import ANCHORS, DEPTH, DRAFT_VOCAB, HIDDEN, LAYERS, TOKENS, VOCAB, WIDTH, filled
from tests.other_tokens import LETTERS, pieces

FROZEN = cases.frozen()


def target_model(vocab=VOCAB, width=WIDTH, depth=DEPTH):
    """A target with the embeddings and output weights of the cases."""
    ends = {"bos_token_id": None, "eos_token_id": None}
    model = tiny_llama(vocab, hidden_size=width, layers=depth, num_key_value_heads=1, **ends).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(filled("embed_tokens.weight", (vocab, width)))
        model.lm_head.weight.copy_(filled("lm_head.weight", (vocab, width)))
    return model


def checkpoint(folder, name, *, config=None, tensors=None):
    """A folder with a case's checkpoint, and its configuration."""
    case = FROZEN[name]
    config = case["config"] if config is None else config
    tensors = cases.weights(case["shapes"]) if tensors is None else tensors
    (folder / "config.json").write_text(json.dumps(config))
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
    return folder


def loaded(folder, target=None):
    return load_published(folder, json.loads((folder / "config.json").read_text()), target or target_model())


def our_logits(folder, backend="torch", batch=False):
    """As those that are frozen, from our runner; one row per anchor in a batch."""
    target = target_model()
    drafter = loaded(folder, target)
    runner = make_runners(target, drafter, backend=backend).draft
    found, depths = [], cases.BLOCK if not hasattr(drafter.config, "block") else drafter.config.block
    for anchors in [ANCHORS] if batch else [[anchor] for anchor in ANCHORS]:
        runner.clear()
        runner.set_rows(rows_of([TOKENS[:anchor] for anchor in anchors]))
        runner.commit([[] for _ in anchors], [HIDDEN[:anchor] for anchor in anchors])
        levels = []
        for depth in range(depths):
            tokens = torch.tensor([[TOKENS[anchor + depth]] for anchor in anchors])
            seen = torch.ones(len(anchors), 1, depth + 1, dtype=torch.bool)
            made = runner.extend(tokens, torch.full_like(tokens, depth), seen)
            logits = made.logits if made.tokens is None else dense(made.logits, made.tokens, runner.vocab_size)
            levels.append(logits[:, 0])
        found += torch.stack(levels, dim=1)
    return torch.stack(found)[:, :, drafter.draft_tokens]


def off(logits, name):
    return difference(logits, torch.tensor(FROZEN[name]["logits"]))


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(("name", "backend"), sorted(product(FROZEN, ["torch", "native"])))
def test_logits_are_those_of_speculators(name, backend, batch, tmp_path):
    assert off(our_logits(checkpoint(tmp_path, name), backend, batch), name) < 2e-5


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("name", ["eagle3", "dflash", "dspark"])
def test_a_pair_of_folders_writes_what_the_target_writes(name, backend, tmp_path):
    target_model().save_pretrained(tmp_path / "target")
    pieces(LETTERS[:VOCAB]).save_pretrained(tmp_path / "target")
    (tmp_path / "draft").mkdir()
    folders, options = (tmp_path / "target", checkpoint(tmp_path / "draft", name)), {"backend": backend}
    pair, plain = draftwood.load(*folders, options=options), draftwood.load(folders[0], options=options)
    assert (pair.target.engine.split()[0], "Drafter" in repr(pair)) == (backend, True)
    wanted = plain.generate("$%&", method="ar", max_new_tokens=30, temperature=0.0).token_ids
    for method in ("adaptive", {"method": "rsd-s", "shape": "3x3"}, {"method": "chain", "shape": "3"}):
        found = pair.generate("$%&", method=method, max_new_tokens=30, temperature=0.0)
        assert found.token_ids == wanted
        assert method == "adaptive" or found.stats.drafted > 0


@pytest.mark.parametrize(("name", "part"), [
    ("eagle3", "fc.weight"), ("eagle3-output", "fc_norm.1.weight"), ("dflash", "hidden_norm.weight"),
    ("dflash", "layers.1.self_attn.q_norm.weight"), ("dspark", "markov_head.markov_w1.weight"),
])  # fmt: skip
def test_control_another_weight_is_seen(name, part, tmp_path):
    tensors = cases.weights(FROZEN[name]["shapes"])
    tensors[part] = tensors[part] + torch.linspace(0, 1, tensors[part].shape[0]).reshape(-1, *[1] * (tensors[part].ndim - 1))
    assert off(our_logits(checkpoint(tmp_path, name, tensors=tensors)), name) > 1e-3


# The formats of other authors, for the same networks.

NEUTRAL = {"bos_token_id": 1, "eos_token_id": 2, "use_cache": True, "initializer_range": 0.02, "dtype": "bfloat16"}


def flat(name, architecture, **more):
    """The configuration of a case without nesting."""
    inner = FROZEN[name]["config"]["transformer_layer_config"]
    return {"architectures": [architecture], **inner, **NEUTRAL, "tie_word_embeddings": False, **more}


def without(name, *parts):
    return {key: value for key, value in cases.weights(FROZEN[name]["shapes"]).items() if key not in parts}


BEFORE = [layer - 1 for layer in LAYERS]
LENT = ("embed_tokens.weight", "lm_head.weight")


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "LlamaForCausalLMEagle3"])
def test_eagle_of_safeailab_and_specforge(architecture, tmp_path):
    config = flat(
        "eagle3", architecture, draft_vocab_size=DRAFT_VOCAB, eagle_config={"eagle_aux_hidden_state_layer_ids": BEFORE}
    )
    tensors = {key.replace("layers.0.", "midlayer."): value for key, value in without("eagle3", LENT[0]).items()}
    folder = checkpoint(tmp_path, "eagle3", config=config, tensors=tensors)
    assert loaded(folder).config.target_layers == LAYERS
    assert off(our_logits(folder), "eagle3") < 2e-5


def test_eagle_reads_layers_by_the_targets_depth_where_none_are_named(tmp_path):
    config = flat("eagle3", "LlamaForCausalLM", draft_vocab_size=DRAFT_VOCAB)
    assert loaded(checkpoint(tmp_path, "eagle3", config=config)).config.target_layers == [2, 3, 3]


HEADS = {
    "markov_rank": 2, "markov_head_type": "vanilla", "enable_confidence_head": True, "confidence_head_with_markov": True,
}  # fmt: skip


@pytest.mark.parametrize(("name", "architecture", "own", "more", "left_out"), [
    ("dflash", "DFlashDraftModel", {}, {"num_target_layers": DEPTH}, LENT),  # of z-lab
    ("dspark", "DSparkDraftModel", {"projector_type": "dspark", "attention_mode": "gqa", **HEADS}, {}, ()),  # of SpecForge
])  # fmt: skip
def test_blocks_of_other_authors(name, architecture, own, more, left_out, tmp_path, caplog):
    own = {"target_layer_ids": BEFORE, "mask_token_id": 4, **own}
    config = flat(name, architecture, block_size=3, dflash_config=own, **more)
    with caplog.at_level(logging.WARNING, logger="draftwood"):
        folder = checkpoint(tmp_path, name, config=config, tensors=without(name, *left_out))
        assert off(our_logits(folder), name) < 2e-5
    assert ("the confidence head of" in caplog.text) == (name == "dspark")


def test_dspark_of_deepspec_which_has_embeddings_of_its_own(tmp_path):
    own = {"target_layer_ids": BEFORE, "mask_token_id": 4, "num_anchors": 9, **HEADS}
    config = flat("dspark", "Qwen3DSparkModel", block_size=3, **own)
    tensors = {**without("dspark"), **{key: filled(key, (VOCAB, WIDTH)) for key in LENT}}
    folder = checkpoint(tmp_path, "dspark", config=config, tensors=tensors)
    assert loaded(folder).config.own_embedding
    assert off(our_logits(folder), "dspark") < 2e-5


def test_other_models_are_not_published_drafters():
    for raw in ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, {"model_type": "hidden_block"}):
        assert published_format(raw) is None


# What is refused.


def changed(name, inner=None, **more):
    config = json.loads(json.dumps(FROZEN[name]["config"]))
    config["transformer_layer_config"].update(inner or {})
    return {**config, **more}


@pytest.mark.parametrize(("name", "config", "said"), [
    ("eagle3", {"new_flag": 3, "other": False}, "flags that are not known: new_flag, other"),
    ("dspark", {"inner": {"strange": 1}}, "not known: transformer_layer_config.strange"),
    ("dspark", {"markov_head_type": "gated"}, "markov_head_type is 'gated', and only 'vanilla'"),
    ("dflash", {"speculators_model_type": "peagle"}, "speculators_model_type is 'peagle', and only eagle3, dflash, dspark"),
    ("dflash", {"mask_token_id": None}, "it lacks mask_token_id"),
    ("dflash", {"inner": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4}}, "full_attention"),
    ("eagle3", {"inner": {"hidden_act": "gelu"}}, "hidden_act is 'gelu', and only 'silu'"),
    ("eagle3", {"inner": {"model_type": "gpt2"}}, "model_type is 'gpt2', and only llama, qwen3"),
    ("eagle3", {"inner": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 9.0, "factor": 2}}}, "rope_parameters"),
    ("eagle3", {"target_hidden_size": 16}, "target_hidden_size is 16, and only 8"),
    ("dflash", {"mask_token_id": 13}, "mask token is 13, but there are embeddings of 13"),
    ("dflash", {"mask_token_id": "x"}, "mask token is 'x'"),
    ("dflash", {"aux_hidden_state_layer_ids": [1, -2]}, r"its target_layers are \[1, -2\]"),
    ("eagle3", {"inner": {"num_attention_heads": 0}}, "num_attention_heads is 0"),
    ("eagle3", {"inner": {"head_dim": 2**31}}, "head_dim is 2147483648"),
    ("other format", {"norm_output": True}, "norm_output is True, and only no value"),
    ("other format", {"eagle_config": {"use_input_layernorm": True}}, r"not known: eagle_config\.use_input_layernorm"),
    ("other format", {"num_hidden_layers": 2}, "num_hidden_layers is 2, and only 1"),
    ("other format", {"architectures": ["Qwen3Eagle3Model"]}, "architecture is 'Qwen3Eagle3Model', and only"),
])  # fmt: skip
def test_flags_that_cannot_be_honoured_are_refused_by_name(name, config, said, tmp_path):
    if name == "other format":
        config = {**flat("eagle3", "LlamaForCausalLMEagle3", draft_vocab_size=DRAFT_VOCAB), **config}
        folder = checkpoint(tmp_path, "eagle3", config=config)
    else:
        folder = checkpoint(tmp_path, name, config=changed(name, **config))
    with pytest.raises((ModelError, PairingError), match=said):
        make_runners(target_model(), loaded(folder))


@pytest.mark.parametrize(("name", "change", "said"), [
    ("eagle3", {"lm_head.weight": None}, r"lack 1 tensor \(lm_head.weight\)"),
    ("eagle3", {"d2t": None}, r"lack 1 tensor \(d2t\)"),
    ("eagle3", {"midlayer.new": torch.ones(2)}, r"hold 1 tensor that the model has no place for \(layers.0.new\)"),
    ("dflash", {"fc.weight": torch.ones(8, 16)}, "fc.weight is 8 x 16 and should be 8 x 24"),
    ("eagle3", {"d2t": torch.arange(3)}, "d2t is 3 and should be 7"),
    ("eagle3", {"d2t": torch.arange(7) * 0 - 1}, "d2t and t2d"),
    ("eagle3", {"t2d": torch.ones(VOCAB, dtype=torch.bool)}, "d2t and t2d"),
    ("eagle3", {}, r"no file \*.safetensors"),  # the tensors are in another one
])  # fmt: skip
def test_tensors_that_are_missing_or_not_known_are_refused_by_name(name, change, said, tmp_path):
    tensors = {**cases.weights(FROZEN[name]["shapes"]), **change}
    folder = checkpoint(tmp_path, name, tensors={key: value for key, value in tensors.items() if value is not None})
    if not change:
        (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=said):
        loaded(folder)


@pytest.mark.parametrize(("name", "target", "said"), [
    ("eagle3", {"width": 16}, "hidden states of width 8, the target's have 16"),
    ("dflash", {"vocab": 17}, "a vocabulary of size 13, the target's has 17"),
    ("dspark", {"depth": 4}, "output of layer 4 before the final norm, and of this target layers 0 to 3"),
])  # fmt: skip
def test_another_target_is_refused_with_both_numbers(name, target, said, tmp_path):
    model = target_model(**target)
    with pytest.raises(PairingError, match=said):
        make_runners(model, loaded(checkpoint(tmp_path, name), model))
