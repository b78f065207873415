"""Arguments of ``generate`` that a draft tree cannot honour are refused by name; stop strings work."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, DynamicCache, GenerationConfig, StopStringCriteria, T5Config

from draftwood.core.errors import CacheError, ConfigError, ModelError, PairingError
from draftwood.hf import recipe
from tests.hf.test_hf import METHODS, NEW, other, ours, plain, plain_text, ragged, target, tokenizer
from tests.runners.zoo import tiny


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 2}, "num_beams=2 .* use num_beams=1"),
        *(
            ({f"output_{name}": True, "return_dict_in_generate": True}, f"output_{name}=True")
            for name in ("scores", "logits", "attentions", "hidden_states")
        ),
        ({"prompt_lookup_num_tokens": 4}, "prompt_lookup_num_tokens=4 .*method='ngram'"),
        ({"penalty_alpha": 0.5, "top_k": 4}, "penalty_alpha=0.5"),
        ({"guidance_scale": 2.0}, "UnbatchedClassifierFreeGuidanceLogitsProcessor keeps state"),
        ({"encoder_repetition_penalty": 1.5}, "EncoderRepetitionPenaltyLogitsProcessor is bound to the rows"),
        ({"encoder_no_repeat_ngram_size": 2}, "EncoderNoRepeatNGramLogitsProcessor is bound to the rows"),
        ({"force_words_ids": [[5]]}, r"force_words_ids=\[\[5\]\] .* beam search"),
        ({"constraints": ["a phrase"]}, r"constraints=\['a phrase'\] .* beam search"),
        ({"assistant_ensemble_weight": 0.5}, "assistant_ensemble_weight=0.5 .* changes the distribution"),
        ({"speculation_type": "dflash"}, "speculation_type='dflash' .* another way of drafting"),
        ({"token_healing": True}, "token_healing=True .* rewrites the end of the prompt"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_honoured_is_refused_by_name(settings, message):
    with pytest.raises(ConfigError, match=message):
        ours(target(), recipe(other()), **settings)


def test_a_recipe_that_was_not_called_says_so():
    with pytest.raises(ConfigError, match=r"generate of transformers give custom_generate=recipe\(draft_model\), not"):
        ours(target(), recipe)


def test_inputs_that_cannot_be_honoured_are_refused():
    ids, mask = ragged()["input_ids"], ragged()["attention_mask"]
    filled = DynamicCache()
    filled.update(torch.zeros(8, 2, 3, 8), torch.zeros(8, 2, 3, 8), 0)
    own = DynamicCache()
    own._is_user_defined = True  # as generate marks it, from 5.23 on
    hole = mask.clone()
    hole[1, -2] = 0
    hole[1, -4] = 1
    for inputs, message in [
        ({"attention_mask": mask.flip(1)}, "padded on the right: set tokenizer.padding_side"),
        ({"attention_mask": hole}, "hides tokens inside a row"),
        ({"attention_mask": torch.ones(8, 12)}, r"attention_mask has shape \(8, 12\)"),
        ({"past_key_values": filled}, "past_key_values was given"),
        ({"cache": filled}, "cache was given"),
        ({"past_key_values": own}, "past_key_values was given"),
        ({"position_ids": torch.arange(9).expand(8, -1)}, "position_ids do not count"),
        ({"token_type_ids": mask, "pixel_values": mask}, "pixel_values, token_type_ids cannot be handed"),
        ({"input_ids": ids[:, :0]}, "input_ids is empty"),
        ({}, "the length of the text has no limit"),
    ]:
        # As ``generate`` calls, with inputs that it would not make itself.
        settings = dict.fromkeys(("logits_processor", "stopping_criteria", "generation_config"))
        with pytest.raises(ConfigError, match=message):
            recipe()(target(), **{**ragged(), **settings, **inputs})


def test_seeds_must_fit_the_rows():
    with pytest.raises(ConfigError, match="2 seeds came for 8 rows"):
        ours(target(), recipe(seed=[1, 2]))


def test_models_and_methods_that_cannot_draft_are_refused_by_name():
    with pytest.raises(PairingError, match="'rsd-c' needs a draft model"):
        ours(target(), recipe(method=METHODS["rsd-c"]))
    t5 = AutoModelForSeq2SeqLM.from_config(T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2,
                                                    decoder_start_token_id=0))  # fmt: skip
    with pytest.raises(ModelError, match=r"'t5' .* encoder-decoder"):
        ours(t5.eval(), recipe(), {"input_ids": torch.tensor([[3, 4]])})


def test_the_drafts_context_counts_too():
    short = tiny("gpt2", dtype=torch.float32, max_position_embeddings=20)
    with pytest.raises(CacheError, match="make 21 tokens, but gpt2 takes 20"):
        ours(target(), recipe(short), max_new_tokens=12)


@pytest.mark.parametrize("name", ["force_words_ids", "is_assistant"])
def test_a_generation_config_that_was_given_is_looked_at_too(name):
    config = GenerationConfig(max_new_tokens=NEW, **{name: {"force_words_ids": [[5]], "is_assistant": True}[name]})
    with pytest.raises(ConfigError, match=f"{name}="):
        target().generate(**ragged(), generation_config=config, custom_generate=recipe())


def stops():
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
