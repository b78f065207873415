"""The masked-block drafter: what a position sees and what it must not see."""

import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from draftwood.core.errors import CacheError, ConfigError, PairingError
from draftwood.runners.blocks.masked_block import MaskedBlockDrafter
from draftwood.runners.pairing import digest_of
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


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


SOURCE = torch.tensor([[5, 6, 7, 8, 1], [9, 3, 1, 0, 0]])
SOURCE_MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
PREFIX = torch.tensor([[0, 11, 12, 13], [0, 14, 0, 0]])
PREFIX_MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


def close(a, b):
    return torch.allclose(a, b, atol=1e-5)


def test_the_encoder_and_the_embeddings_are_copies_of_the_targets(target, drafter):
    ours = drafter.encode(SOURCE, SOURCE_MASK).states
    theirs = target.get_encoder()(input_ids=SOURCE, attention_mask=SOURCE_MASK).last_hidden_state
    assert close(ours[0], theirs[0])
    assert close(ours[1, :3], theirs[1, :3])
    weight = drafter.encoder.embed_tokens.weight
    assert torch.equal(weight, target.model.shared.weight)
    assert weight.data_ptr() != target.model.shared.weight.data_ptr()


def test_a_row_does_not_depend_on_its_neighbours_or_on_padding(drafter):
    scores = drafter(drafter.encode(SOURCE, SOURCE_MASK), PREFIX, PREFIX_MASK, 7)
    assert scores.shape == (2, 7, 40)
    alone = drafter(drafter.encode(SOURCE[1:, :3]), PREFIX[1:, :2], None, 7)
    assert close(scores[1], alone[0])
    garbage = SOURCE.clone(), PREFIX.clone()
    garbage[0][1, 3:] = 33
    garbage[1][1, 2:] = 34
    assert close(drafter(drafter.encode(garbage[0], SOURCE_MASK), garbage[1], PREFIX_MASK, 7), scores)


def test_masked_positions_see_the_whole_prefix_and_the_source(drafter):
    scores = drafter(drafter.encode(SOURCE[:1]), PREFIX[:1])
    assert scores.shape == (1, 5, 40)  # the block of the configuration
    for place in range(1, 4):
        other = PREFIX[:1].clone()
        other[0, place] = 20
        assert not close(drafter(drafter.encode(SOURCE[:1]), other)[:, -1], scores[:, -1])
    for place in range(5):
        other = SOURCE[:1].clone()
        other[0, place] = 20
        assert not close(drafter(drafter.encode(other), PREFIX[:1])[:, -1], scores[:, -1])


def test_the_prefix_sees_the_block_even_where_nothing_is_padded(drafter):
    """Self-attention is bidirectional: one more position at the end changes the first prediction."""
    source = drafter.encode(SOURCE[:1])
    five, six = (drafter(source, PREFIX[:1], None, k)[:, 0] for k in (5, 6))
    assert not close(five, six)


def test_a_saved_drafter_is_the_same_and_knows_its_target(target, drafter, tmp_path):
    drafter.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    again = MaskedBlockDrafter.from_pretrained(tmp_path).eval()
    assert (again.config.block, again.config.mask_token_id) == (5, MASK)
    for k in (1, 5, 20):
        ours, theirs = (d(d.encode(SOURCE, SOURCE_MASK), PREFIX, PREFIX_MASK, k) for d in (drafter, again))
        assert torch.equal(ours, theirs)
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


def test_what_does_not_fit_is_refused(drafter):
    source = drafter.encode(SOURCE[:1])
    with pytest.raises(ConfigError, match="0 positions"):
        drafter(source, PREFIX[:1], None, 0)
    with pytest.raises(ConfigError, match="after a prefix of 0 tokens"):
        drafter(source, PREFIX[:1], torch.zeros(1, 4, dtype=torch.long), 3)
    assert drafter(source, PREFIX[:1], None, 60).shape == (1, 60, 40)
    with pytest.raises(CacheError, match="exceed the 64 positions"):
        drafter(source, PREFIX[:1], None, 61)
