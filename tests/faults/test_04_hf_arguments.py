"""Arguments of ``generate`` that a draft tree cannot honour are refused by name; stop strings work."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import GenerationConfig, StopStringCriteria

from draftwood.core.errors import ConfigError
from draftwood.hf import recipe
from draftwood.loading.unsupported import UNSUPPORTED
from tests.test_hf import NEW, ours, plain, plain_text, ragged, target, tokenizer

HONOURED = {  # by processors, criteria, the limits of the text, or the recipe itself
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "stop_strings", "do_sample"),
    *("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "repetition_penalty"),
    *("no_repeat_ngram_size", "bad_words_ids", "renormalize_logits", "forced_bos_token_id", "forced_eos_token_id"),
    *("remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"),
    *("sequence_bias", "num_return_sequences", "return_dict_in_generate", "pad_token_id", "bos_token_id", "eos_token_id"),
}
REFUSED_AS_PROCESSORS = {
    *("encoder_repetition_penalty", "encoder_no_repeat_ngram_size", "guidance_scale", "watermarking_config"),
}
WITHOUT_EFFECT_ON_THE_TEXT = {
    *("use_cache", "cache_config", "max_cache_len", "low_memory", "prefill_chunk_size", "compile_config", "disable_compile"),
    *("continuous_batching_config", "transformers_version"),
    *("early_stopping", "length_penalty", "num_beam_groups", "diversity_penalty"),  # of beam search
    *("decoder_start_token_id",),  # of encoder-decoder models
    # How an assistant drafts:
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold", "max_matching_ngram_size"),
    *("assistant_lookbehind", "target_lookbehind"),
}


def test_every_field_of_a_generation_config_is_honoured_refused_or_without_effect():
    refused = {name for name, row in UNSUPPORTED.items() if row.recipe} | {"cache_implementation"}
    known = HONOURED | REFUSED_AS_PROCESSORS | WITHOUT_EFFECT_ON_THE_TEXT | refused
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert fields - known == set()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"force_words_ids": [[5]]}, r"force_words_ids=\[\[5\]\] .* beam search"),
        ({"constraints": ["a phrase"]}, r"constraints=\['a phrase'\] .* beam search"),
        ({"assistant_ensemble_weight": 0.5}, "assistant_ensemble_weight=0.5 .* changes the distribution"),
        ({"speculation_type": "dflash"}, "speculation_type='dflash' .* another way of drafting"),
        ({"token_healing": True}, "token_healing=True .* rewrites the end of the prompt"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
@pytest.mark.filterwarnings("ignore")
def test_what_generate_would_ignore_is_refused_by_name(settings, message):
    with pytest.raises(ConfigError, match=message):
        ours(target(), recipe(), **settings)


@pytest.mark.parametrize("name", ["force_words_ids", "is_assistant"])
def test_a_generation_config_that_was_given_is_looked_at_too(name):
    config = GenerationConfig(max_new_tokens=NEW, **{name: {"force_words_ids": [[5]], "is_assistant": True}[name]})
    with pytest.raises(ConfigError, match=f"{name}="):
        target().generate(**ragged(), generation_config=config, custom_generate=recipe())


def stops() -> list[str]:
    """Parts of texts that cross the border of two tokens."""
    return [tokenizer().decode(plain_text("llama")[3, -NEW + 5 : -NEW + 7])[1:3], "jh"]


@pytest.mark.parametrize("extra", [{}, {"tokenizer": tokenizer()}], ids=["bound", "bound and given"])
def test_stop_strings_end_texts_as_in_generate(extra):
    wanted = plain(target(), stop_strings=stops(), tokenizer=tokenizer())
    assert not torch.equal(wanted, plain_text("llama"))
    made = recipe(target(), tokenizer=tokenizer())
    assert torch.equal(ours(target(), made, stop_strings=stops(), **extra), wanted)
    one = plain(target(), stop_strings=stops()[0], tokenizer=tokenizer())
    assert not torch.equal(one, wanted)
    assert torch.equal(ours(target(), made, stop_strings=stops()[0], **extra), one)


def test_stop_strings_and_own_criteria_end_texts_together():
    last = int(plain_text("llama")[1, -NEW + 2])

    class Token(torch.nn.Module):
        def forward(self, input_ids, scores, **kwargs):
            return input_ids[:, -1] == last

    settings = {"stop_strings": stops(), "stopping_criteria": [Token()]}
    wanted = plain(target(), tokenizer=tokenizer(), **settings)
    assert torch.equal(ours(target(), recipe(target(), tokenizer=tokenizer()), **settings), wanted)


def test_own_stop_string_criteria_come_before_stop_strings_as_in_generate():
    settings = {"stop_strings": ["gd"], "stopping_criteria": [StopStringCriteria(tokenizer(), stops())]}
    wanted = plain(target(), tokenizer=tokenizer(), **settings)
    assert torch.equal(ours(target(), recipe(tokenizer=tokenizer()), **settings), wanted)
    assert not torch.equal(wanted, plain_text("llama"))


def test_stop_strings_without_a_bound_tokenizer_say_where_to_bind_it():
    with pytest.raises(
        ConfigError, match=r"stop_strings=\['a'\] need a tokenizer, .*: give it to recipe\(\.\.\., tokenizer="
    ):
        ours(target(), recipe(), stop_strings=["a"], tokenizer=tokenizer())


def test_input_embeddings_have_a_sentence_of_their_own():
    ids = ragged()["input_ids"]
    embedded = {"inputs_embeds": target().get_input_embeddings()(ids)}
    for inputs in (embedded, {**embedded, "input_ids": ids}):
        with pytest.raises(ConfigError, match=r"inputs_embeds was given, but .* token ids: give input_ids instead"):
            ours(target(), recipe(), inputs)


def test_a_recipe_with_a_tokenizer_can_be_used_again_without_stop_strings():
    made = recipe(target(), tokenizer=tokenizer())
    before = copy.copy(vars(made))
    assert torch.equal(ours(target(), made), plain_text("llama"))
    assert made.tokenizer is before["tokenizer"]
