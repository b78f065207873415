"""Tiny language models in folders, and ways to damage them."""

import json

import torch
from safetensors.torch import load_file, save_file
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["the fox ran to the hill and the hen sat on the red hill", "a dog and a hen ran and sat"]


def tiny_tokenizer(words=WORDS, vocab=280, **special):
    """A byte-level tokenizer whose token 0 is ``<end>``."""
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(words, vocab_size=vocab, min_frequency=1, special_tokens=["<end>"], show_progress=False)
    special = {"bos_token": "<end>", "eos_token": "<end>", **special}
    return PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, **special)


def tiny_llama(vocab, *, layers=2, seed=0, **settings):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64}
    sizes |= {"initializer_range": 0.3, "bos_token_id": 0, "eos_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab, num_hidden_layers=layers, **{**sizes, **settings}))


def save_tiny(folder, *, layers=2, seed=0, **settings):
    """A folder with a model and its tokenizer."""
    tokenizer = tiny_tokenizer()
    tiny_llama(len(tokenizer), layers=layers, seed=seed, **settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def change_json(path, **values):
    """Replace values of a file."""
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


def change_tensors(folder, change):
    """Rewrite the weights of a folder."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
