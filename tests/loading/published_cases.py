"""Tiny published drafters with fixed weights, and the logits that they must give.

``python -m tests.loading.published_cases`` writes ``published.json`` with the package speculators 0.9.0.
"""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path

import torch

FROZEN = Path(__file__).with_name("published.json")
VOCAB, DRAFT_VOCAB, WIDTH, DEPTH, LENGTH, BLOCK = 13, 7, 8, 6, 9, 3
LAYERS = [1, 2, 4]
ANCHORS = [2, 5]  # positions of roots
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
CASES = {
    # name: kind, layers, flags
    "eagle3": ("eagle3", "llama", {}, {"draft_vocab_size": DRAFT_VOCAB}),
    "eagle3-before-fc": ("eagle3", "llama", {}, {"norm_before_residual": True, "norm_before_fc": True}),
    "eagle3-output": ("eagle3", "qwen3", {"num_hidden_layers": 2}, {"fc_norm": True, "norm_output": True}),
    "eagle3-biases": ("eagle3", "llama", {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3}, {}),
    "dflash": ("dflash", "qwen3", {"num_hidden_layers": 2}, {}),
    "dflash-reduced": (
        "dflash", "qwen3", {"attention_bias": True, "rope_parameters": YARN},
        {"draft_vocab_size": DRAFT_VOCAB, "sample_from_anchor": True},
    ),
    "dspark": ("dspark", "qwen3", {"num_hidden_layers": 2}, {"markov_rank": 2}),
    "dspark-reduced": (
        "dspark", "qwen3", {}, {"draft_vocab_size": DRAFT_VOCAB, "sample_from_anchor": False, "markov_rank": 2},
    ),
    "dspark-no-head": ("dspark", "qwen3", {}, {"markov_rank": 0, "enable_confidence_head": False}),
}  # fmt: skip


def filled(name: str, shape) -> torch.Tensor:
    """Numbers that depend on a name only."""
    count, start = math.prod(shape), zlib.crc32(name.encode()) % 1000
    values = torch.sin((torch.arange(count, dtype=torch.float64) + start) * 1.7) * 0.5
    return (values + 1 if "norm" in name else values).reshape(list(shape)).float()


def weights(shapes) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint: every other token can be drafted, if not all can."""
    found = {name: filled(name, shape) for name, shape in shapes.items() if name not in ("d2t", "t2d")}
    if "d2t" in shapes:
        found["d2t"] = torch.arange(DRAFT_VOCAB)
        found["t2d"] = torch.arange(VOCAB) % 2 == 0
    return found


TOKENS = [(5 * i + 3) % VOCAB for i in range(LENGTH)]
HIDDEN = filled("hidden", (LENGTH, len(LAYERS) * WIDTH))


def speculator(name: str):
    """The model that speculators makes of a case."""
    from speculators import SpeculatorModelConfig
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.model import SpeculatorModel
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import AutoConfig

    kind, layers, shape, flags = CASES[name]
    common = {
        "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 12, "num_hidden_layers": 1, "head_dim": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    inner = AutoConfig.for_model(layers, **{**common, **shape})
    inner._attn_implementation = "eager"
    numbers = "eagle_aux_hidden_state_layer_ids" if kind == "eagle3" else "aux_hidden_state_layer_ids"
    block = {} if kind == "eagle3" else {"block_size": BLOCK, "mask_token_id": 4}
    config = SpeculatorModelConfig.from_dict({
        "speculators_model_type": kind,
        "transformer_layer_config": inner,
        "draft_vocab_size": VOCAB,
        numbers: LAYERS,
        "speculators_config": SpeculatorsConfig(
            algorithm=kind, proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy", verifier=VerifierConfig(name_or_path=None, architectures=[]),
        ),
        **block,
        **flags,
    })  # fmt: skip
    model = SpeculatorModel.registered_model_class_from_config(config)(config=config).eval()
    shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
    model.load_state_dict(weights(shapes))
    return model


@torch.no_grad()
def logits_of(model) -> torch.Tensor:
    """Logits [anchor, depth, draft token] after the root, and after paths of the text itself."""
    kind = model.config.speculators_model_type
    hidden, tokens = HIDDEN[None], torch.tensor([TOKENS])
    documents, found = torch.zeros_like(tokens), []
    if kind == "eagle3":
        model.lm_head.register_forward_hook(lambda _m, _i, out: found.append(out[0]))
        shifted = torch.roll(tokens, -1, 1)  # an entry is a token, and the hidden states before it
        model(hidden, shifted, documents, ttt_steps=BLOCK)
        return torch.stack([step[[anchor - 1 for anchor in ANCHORS]] for step in found], dim=1)
    import speculators.models.dflash.core as dflash
    import speculators.models.dspark.core as dspark

    anchors = torch.tensor(ANCHORS)
    dflash.select_anchors = lambda *_: (anchors, torch.ones(len(ANCHORS), dtype=torch.bool))
    dflash.compute_metrics = dspark.compute_metrics = lambda logits, *_, **__: found.append(logits) or (None, {})
    model(hidden, tokens, torch.ones_like(tokens), hidden[..., :WIDTH], documents, max_anchors=len(ANCHORS))
    logits = found[0].view(len(ANCHORS), BLOCK, -1)
    return logits if model.config.sample_from_anchor else logits[:, 1:]


def frozen() -> dict:
    return json.loads(FROZEN.read_text(encoding="utf-8"))


def _saved(name: str, folder: str) -> dict:
    """What is frozen of a case."""
    from safetensors import safe_open

    model = speculator(name)
    model.save_pretrained(folder)
    with safe_open(Path(folder) / "model.safetensors", "pt") as file:
        shapes = {key: list(file.get_slice(key).get_shape()) for key in sorted(file.keys())}
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    logits = [[[round(x, 6) for x in depth] for depth in anchor] for anchor in logits_of(model).tolist()]
    return {"config": config, "shapes": shapes, "logits": logits}


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as part:
        out = {name: _saved(name, f"{part}/{name}") for name in CASES}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in out.items())
    FROZEN.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
