"""A tiny language pair, a translation model that has learnt it, drafters for it, and their folders."""

import random

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
)

from draftwood.runners.blocks.masked_block import MaskedBlockConfig, MaskedBlockDrafter, digest_of

CONTEXT = 40
WORDS = {"ein": "a", "rotes": "red", "altes": "old", "Haus": "house", "Boot": "boat", "steht": "stands", "fährt": "sails"}
WORDS |= {"hier": "here", "dort": "there", "heute": "today", "nie": "never", "und": "and", "Buch": "book", "liegt": "lies"}


def sentences(count, seed=0):
    """German sentences of one to twelve words; English is word by word the same."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(list(WORDS), k=rng.randint(1, 12))) for _ in range(count)]


def english(sentence):
    return " ".join(WORDS[word] for word in sentence.split())


def tiny_tokenizer():
    return pair_tokenizer([*sentences(60), *map(english, sentences(60))], 400)


def pair_tokenizer(texts, vocab):
    """Byte-level BPE for both languages, as the bundled pair has it: every sentence gets a leading space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Prepend(" ")])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    special, alphabet = ["<pad>", "</s>", "[MASK]"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    named = {"pad_token": "<pad>", "eos_token": "</s>", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=CONTEXT, **named)


def new_block_drafter(target, mask_token_id, **settings):
    """A drafter for a Marian model, with copies of its encoder and embeddings; other weights are random."""
    kept = target.config.to_dict().items()
    own = {"model_type", "decoder_layers", "decoder_ffn_dim", "dropout", "architectures", "dtype"}
    shared = {name: value for name, value in kept if name not in own}
    config = MaskedBlockConfig(**shared, **settings, dropout=0.0, mask_token_id=mask_token_id, target=digest_of(target))
    drafter = MaskedBlockDrafter(config)
    drafter.encoder.load_state_dict(target.get_encoder().state_dict())
    return drafter


def tiny_marian(tokenizer, seed, *, layers=2, steps=0):
    """A random model, which then learns the language for some steps: not to the end, so that it also errs."""
    torch.manual_seed(seed)
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, "decoder_start_token_id": 0}
    ids |= {"forced_eos_token_id": None}
    config = MarianConfig(
        vocab_size=len(tokenizer), d_model=32, encoder_layers=1, decoder_layers=layers, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=CONTEXT,
        activation_function="relu", dropout=0.0, scale_embedding=True, tie_word_embeddings=True, **ids,
    )  # fmt: skip
    model = MarianMTModel(config)
    model.generation_config = GenerationConfig(do_sample=False, num_beams=1, max_length=CONTEXT, **ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        lines = sentences(24, seed=1000 + step)
        batch = tokenizer(lines, return_tensors="pt", padding=True)
        labels = tokenizer([english(line) for line in lines], return_tensors="pt", padding=True)["input_ids"]
        starts = torch.nn.functional.pad(labels[:, :-1], (1, 0))
        logits = model(**batch, decoder_input_ids=starts, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def save_models(folder):
    """``target``, its drafter ``block``, a ``causal`` model, an ``other`` encoder-decoder with ``its-block``, and a
    ``stranger``, whose tokenizer is another one."""
    tokenizer = tiny_tokenizer()
    target, other = tiny_marian(tokenizer, 1, steps=200), tiny_marian(tokenizer, 2, layers=1)
    torch.manual_seed(3)
    settings = {"decoder_layers": 1, "decoder_ffn_dim": 48, "block": 6}
    llama = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=CONTEXT, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    models = {
        "target": target,
        "block": new_block_drafter(target, tokenizer.mask_token_id, **settings),
        "causal": LlamaForCausalLM(llama),
        "other": other,
        "its-block": new_block_drafter(other, tokenizer.mask_token_id, **settings),
        "stranger": tiny_marian(tokenizer, 4, layers=1),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        (stranger() if name == "stranger" else tokenizer).save_pretrained(folder / name)


def stranger():
    return pair_tokenizer(["zebras quiz vexed jocks of my big sphinx"], 348)
