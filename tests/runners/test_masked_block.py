"""The masked-block drafter: what a position sees and what it must not see."""

import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from draftwood.core.errors import PairingError
from draftwood.runners.blocks.masked_block import MaskedBlockDrafter, digest_of
from tests.differences import difference
from tests.tiny_translation import new_block_drafter

MASK = 2


def marian(seed=0):
    torch.manual_seed(seed)
    sizes = {"encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "d_model": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    others = {"vocab_size": 40, "max_position_embeddings": 32, "scale_embedding": True, "init_std": 0.3}
    return MarianMTModel(MarianConfig(**sizes, **heads, **ids, **others)).eval()


@pytest.fixture(scope="module")
def target():
    return marian()


def drafter_of(target, *, seed=1):
    torch.manual_seed(seed)
    made = new_block_drafter(target, MASK, decoder_layers=2, decoder_ffn_dim=20, block=5)
    for part in (made.question, made.layers):  # so large that every input shows
        for weight in part.parameters():
            torch.nn.init.normal_(weight, std=0.3)
    return made.eval()


@pytest.fixture(scope="module")
def drafter(target):
    return drafter_of(target)


@torch.no_grad()
def plain_scores(model, source, text, count):
    """Scores [count, vocab] of the ``count`` tokens after a text, as the paper has them: one row, no masks."""
    words, scale = model.encoder.embed_tokens, model.encoder.embed_scale
    read, given = torch.tensor([source]), torch.tensor([[*text, *[model.config.mask_token_id] * count]])
    embedded = words(read) * scale + model.encoder.embed_positions(read.shape)
    states = model.encoder(input_ids=read).last_hidden_state
    at = torch.arange(given.shape[1])[None]
    asked, _ = model.question(model.positions(at.shape, position_ids=at)[:, -count:], key_value_states=embedded)
    hidden = words(given) * scale + model.positions(at.shape, position_ids=at)
    hidden[:, -count:] += asked
    for layer in model.layers:
        layer.self_attn.is_causal = False
        hidden = layer(hidden, None, states)
    return hidden[0, -count:] @ words.weight.T


SOURCE, PREFIX = [5, 6, 7, 8, 1], [0, 11, 12, 13]


def test_masked_positions_see_the_whole_prefix_the_source_and_one_another(drafter):
    scores = plain_scores(drafter, SOURCE, PREFIX, 5)
    assert scores.shape == (5, 40)
    for place in range(1, 4):
        assert difference(plain_scores(drafter, SOURCE, [*PREFIX[:place], 20, *PREFIX[place + 1 :]], 5), scores) > 1e-4
    for place in range(5):
        assert difference(plain_scores(drafter, [*SOURCE[:place], 20, *SOURCE[place + 1 :]], PREFIX, 5), scores) > 1e-4
    assert difference(plain_scores(drafter, SOURCE, PREFIX, 6)[0], scores[0]) > 1e-4  # attention in both directions


def test_a_saved_drafter_is_the_same_and_knows_its_target(target, drafter, tmp_path):
    drafter.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    again = MaskedBlockDrafter.from_pretrained(tmp_path).eval()
    assert (again.config.block, again.config.mask_token_id) == (5, MASK)
    assert torch.equal(*(plain_scores(one, SOURCE, PREFIX, 7) for one in (drafter, again)))
    again.check_target(target)
    with pytest.raises(PairingError, match=f"digest {digest_of(target)}, this target has {digest_of(marian(5))}"):
        again.check_target(marian(5))


def test_the_fingerprint_of_a_model_does_not_change_when_it_is_saved(target, tmp_path):
    target.save_pretrained(tmp_path)
    kinds = [MarianMTModel.from_pretrained(tmp_path, dtype=d) for d in (torch.float32, torch.bfloat16)]
    assert {digest_of(m) for m in [*kinds, target]} == {digest_of(target)}
    with torch.no_grad():
        kinds[0].model.decoder.layers[0].fc1.weight[0, 0] += 1.0
    assert digest_of(kinds[0]) != digest_of(target)
