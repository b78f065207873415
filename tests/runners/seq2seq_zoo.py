"""One tiny random encoder-decoder model of every supported type, and the plain way to score a text over a source."""

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, BertConfig, EncoderDecoderConfig, EncoderDecoderModel

VOCAB = 97
PAD, EOS, START = 1, 3, 2

_COMMON = {
    "vocab_size": VOCAB, "d_model": 32, "bos_token_id": 0, "eos_token_id": EOS, "pad_token_id": PAD,
    "decoder_start_token_id": START, "forced_bos_token_id": None, "forced_eos_token_id": None, "tie_word_embeddings": True,
}  # fmt: skip
_BART = {
    **_COMMON, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128, "init_std": 0.3, "dropout": 0.0,
}  # fmt: skip
_T5 = {
    **_COMMON, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "dropout_rate": 0.0,
}  # fmt: skip
ABSOLUTE = ["marian", "bart", "mbart", "pegasus", "m2m_100", "plbart", "blenderbot", "blenderbot-small", "mvp"]
RELATIVE = ["t5", "mt5", "umt5"]
SUPPORTED = ABSOLUTE + RELATIVE
_GEMMA = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "head_dim": 8, "max_position_embeddings": 128, "initializer_range": 0.3,
}  # fmt: skip
_OTHERS = {
    "pegasus_x": {**_BART, "block_size": 4},
    "fsmt": {**_BART, "langs": ["de", "en"], "src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB + 10},
    "t5gemma": {**_COMMON, "encoder": _GEMMA, "decoder": _GEMMA, "initializer_range": 0.3},
}
_POSITIONS = "the positions of its decoder cannot be set"
OTHERS = {"pegasus_x": _POSITIONS, "t5gemma": _POSITIONS, "encoder-decoder": _POSITIONS, "fsmt": "no mask of a tree"}
"""Refused, and why."""


def tiny(kind, seed=0, *, dtype=torch.float64, spread=3.0, **settings):
    """A model of this type with random weights; ``spread`` makes its positions, and its relative biases, matter."""
    torch.manual_seed(seed)
    if kind == "encoder-decoder":
        return _two_berts().to(dtype).eval()
    base = _OTHERS.get(kind) or (_T5 if kind in RELATIVE else _BART)
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **{**base, **settings})).to(dtype).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "relative_attention_bias" in name or "embed_positions" in name:
                weight.normal_(std=spread)
            elif (weight.ndim == 1 and "bias" in name) or (kind in RELATIVE and "shared" not in name and weight.ndim == 2):
                weight.normal_(std=0.3)
        if isinstance(bias := getattr(model, "final_logits_bias", None), torch.Tensor):
            bias.normal_()
    return model


def _two_berts():
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        "initializer_range": 0.3,
    }  # fmt: skip
    decoder = BertConfig(**sizes, is_decoder=True, add_cross_attention=True)
    config = EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**sizes), decoder)
    config.decoder_start_token_id, config.pad_token_id = START, PAD
    return EncoderDecoderModel(config)


@torch.no_grad()
def plain_scores(model, source, text):
    """Scores after the last token of one text: an ordinary forward of everything, without memory, masks or positions."""
    tokens, said = (torch.tensor([list(line)]) for line in (source, text))
    return model(input_ids=tokens, decoder_input_ids=said, use_cache=False).logits[0, -1]
