"""A pair's own sampling has the distribution of ``model.generate`` under the same config, or is refused by name."""

import pytest
import torch
from transformers import GenerationConfig

import draftwood
from draftwood.api import Pair
from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.loading.unsupported import UNSUPPORTED
from draftwood.sampling.settings import Sampling
from tests.faults.folders import change_json, save_tiny
from tests.helpers import Numbers, sampler_of, tiny_gpt

VOCAB, EOS = 61, [3, 17]
PROMPT = [5, 6, 7, 5, 6]
NEW = 7
SOME = list(range(20, 50))
PENALTIES = {
    "repetition_penalty": {"repetition_penalty": 1.7},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[t] for t in SOME[:20]] + [[6, t] for t in SOME[20:]]},
    "sequence_bias": {"sequence_bias": [[[6, 9], 3.0], [[9], 4.0]], "repetition_penalty": 1.5},
    "suppress_tokens": {"suppress_tokens": SOME},
    "begin_suppress_tokens": {"begin_suppress_tokens": SOME},
    "min_length": {"min_length": len(PROMPT) + 4, "eos_token_id": [*EOS, *SOME]},
    "min_new_tokens": {"min_new_tokens": 4, "eos_token_id": [*EOS, *SOME]},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (2, 1.9)},
    "remove_invalid_values": {"remove_invalid_values": True, "repetition_penalty": 1.2},
    "several": {
        "repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "suppress_tokens": [7, 8], "bad_words_ids": [[9], [4, 5]],
        "min_new_tokens": 3, "begin_suppress_tokens": [11, 12], "renormalize_logits": True,
    },
}  # fmt: skip
WARPERS = {
    "default top_k": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1, "top_k": 0},
    "typical_p": {"typical_p": 0.6},
    "epsilon_cutoff": {"epsilon_cutoff": 0.02},
    "eta_cutoff": {"eta_cutoff": 0.05, "top_k": 0},
    "all": {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.8, "epsilon_cutoff": 0.01},
}


def pair_of(**settings):
    model, draft = tiny_gpt(VOCAB, 1, dtype=torch.float32), tiny_gpt(VOCAB, 2, layers=1, dtype=torch.float32)
    model.generation_config = GenerationConfig(**{"eos_token_id": EOS, "pad_token_id": 0, **settings})
    return Pair(model, draft, Numbers())


def generated(pair, prompt=PROMPT, new=NEW, **more):
    ids = torch.tensor([prompt])
    settings = {"max_new_tokens": new, "return_dict_in_generate": True, "output_scores": True}
    return pair.target.model.generate(ids, attention_mask=torch.ones_like(ids), **settings, **more)


def wanted(pair):
    return generated(pair).sequences[0, len(PROMPT) :].tolist()


TEXT = " ".join(map(str, PROMPT))
LIMITS = Limits(max_new_tokens=NEW)


# Sampling: every step's distribution, and the texts ---------------------------------------------------------------------


@torch.no_grad()
def steps(pair, sampling):
    """Along one sampled text: the distribution that ``generate`` has drawn from, and ours."""
    for seed in range(20):  # until one is not over at once
        torch.manual_seed(seed)
        out = generated(pair)
        if len(out.scores) > 3:
            break
    text, found = out.sequences[0].tolist(), []
    for step, scores in enumerate(out.scores):
        prefix = text[: len(PROMPT) + step]
        sampler = sampler_of(sampling, [prefix], VOCAB, prompts=[len(PROMPT)])
        logits = pair.target.model(torch.tensor([prefix])).logits[:, -1:]
        found.append((scores[0].softmax(-1), sampler.target(logits, lambda: [[[]]]).settled.dense()[0, 0].softmax(-1)))
    return found


@pytest.mark.parametrize("name", [*PENALTIES, *WARPERS])
def test_every_step_is_drawn_from_the_distribution_of_generate(name):
    settings = {**PENALTIES, **WARPERS}[name]
    pair = pair_of(do_sample=True, **settings)
    found = steps(pair, pair.sampling)
    assert len(found) > 3
    for theirs, ours in found:
        assert torch.allclose(theirs, ours, atol=2e-6)
    plain = steps(pair, Sampling())
    assert any(not torch.allclose(*both, atol=1e-5) for both in plain), "the setting changes nothing here"


# The most likely text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PENALTIES, "nothing", "idle", "forced_eos_token_id", "forced_bos_token_id"])
def test_without_do_sample_the_text_is_that_of_generate(name):
    more = {
        "nothing": {},
        "idle": {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "typical_p": 0.5, "do_sample": False, "top_h": 0.4},
        "forced_eos_token_id": {"forced_eos_token_id": [17, 3]},
        "forced_bos_token_id": {"forced_bos_token_id": 9},
    }
    pair = pair_of(**{**PENALTIES, **more}[name])
    assert pair.sampling.greedy
    for method in (Method(method="rsd-s"), Method(method="ngram"), Method(method="ar"), Method()):
        assert pair.generate(TEXT, limits=LIMITS, method=method).token_ids == wanted(pair)
    if name in PENALTIES or name.startswith("forced_eos"):
        assert pair_of().generate(TEXT, limits=LIMITS).token_ids != wanted(pair), "the setting changes nothing here"


@pytest.mark.parametrize("words", [[[9]], [[9], [7], [8, 9]]], ids=str)
def test_a_forced_first_token_comes_even_if_it_is_a_bad_word(words):
    pair = pair_of(forced_bos_token_id=9, bad_words_ids=words)
    for prompt in ([5], [5, 6, 7]):
        [result] = pair.generate([prompt], limits=LIMITS)
        assert result.token_ids == generated(pair, prompt).sequences[0, len(prompt) :].tolist()
        assert (result.token_ids[0] == 9) == (len(prompt) == 1), "else nothing was forced"


def test_counting_settings_count_from_each_prompts_own_end():
    pair = pair_of(min_new_tokens=4, begin_suppress_tokens=SOME, eos_token_id=list(range(40)), forced_bos_token_id=9)
    prompts = [[5], [5, 6, 7], [8, 9, 10, 11, 12, 13]]
    results = pair.generate([" ".join(map(str, prompt)) for prompt in prompts], limits=LIMITS)
    texts = [generated(pair, prompt).sequences[0, len(prompt) :].tolist() for prompt in prompts]
    assert [result.token_ids for result in results] == texts
    assert texts[0][0] == 9


# What is refused, said and overruled ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 4}, "num_beams=4: beam search .* give a temperature"),
        ({"penalty_alpha": 0.6}, "penalty_alpha=0.6: contrastive search"),
        ({"guidance_scale": 1.5}, "guidance_scale=1.5: .* give a Sampling of your own"),
        ({"encoder_repetition_penalty": 1.2}, "encoder_repetition_penalty=1.2"),
        ({"encoder_no_repeat_ngram_size": 2}, "encoder_no_repeat_ngram_size=2"),
        ({"do_sample": True, "top_h": 0.4}, "top_h=0.4"),
        ({"watermarking_config": {"bias": 2.0}}, "watermarking_config="),
        ({"token_healing": True}, "token_healing=True"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_honoured_is_refused_by_name_unless_a_sampling_is_given(settings, message):
    pair = pair_of(**settings)
    with pytest.raises(ConfigError, match=f"^the target's generation config says {message}"):
        pair.generate(TEXT, limits=LIMITS)
    given = pair.generate(TEXT, limits=LIMITS, sampling=Sampling(temperature=0.0))
    assert given.token_ids == pair_of().generate(TEXT, limits=LIMITS).token_ids


def test_a_temperature_that_is_given_replaces_a_search():
    pair = pair_of(num_beams=4, repetition_penalty=1.7)
    assert pair.own_sampling({"temperature": 0.5}) == Sampling(temperature=0.5, repetition_penalty=1.7)
    with pytest.raises(ConfigError, match="num_beams=4"):
        pair.own_sampling({"repetition_penalty": 1.2})


OF_DRAFTING = {
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold", "max_matching_ngram_size"),
    *("assistant_lookbehind", "target_lookbehind"),
}
KNOWN = {  # honoured by both, or without effect on the text
    *(name for settings in (*PENALTIES.values(), *WARPERS.values()) for name in settings),
    *("do_sample", "forced_bos_token_id", "forced_eos_token_id", "max_length", "max_new_tokens", "pad_token_id"),
    *("bos_token_id", "use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory"),
    *("prefill_chunk_size", "compile_config", "disable_compile", "continuous_batching_config", "transformers_version"),
    *("early_stopping", "length_penalty", "num_beam_groups", "diversity_penalty", "decoder_start_token_id"),
    *("return_dict_in_generate", *OF_DRAFTING),
}
OF_RECIPES = {  # honoured by processors and criteria, or refused as processors
    *("max_time", "stop_strings", "top_h", "num_return_sequences", "watermarking_config", "guidance_scale"),
    *("encoder_repetition_penalty", "encoder_no_repeat_ngram_size"),
}
IDLE_IN_PAIRS = {  # which have outputs and drafts of their own
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "is_assistant", "use_mtp"),
    *("prompt_lookup_num_tokens", "assistant_early_exit", "assistant_ensemble_weight", "speculation_type"),
}


@pytest.mark.parametrize(("kind", "more"), [("pair", IDLE_IN_PAIRS), ("recipe", OF_RECIPES)])
def test_every_field_of_a_generation_config_is_honoured_refused_said_or_without_effect(kind, more):
    known = KNOWN | more | {name for name, row in UNSUPPORTED.items() if getattr(row, kind)}
    assert {name for name in vars(GenerationConfig()) if not name.startswith("_")} - known == set()


def test_given_settings_replace_the_models_own_and_the_others_stay():
    pair = pair_of(do_sample=1, temperature=0.6, top_p=0.9, repetition_penalty=1.3)  # generate takes any value that is true
    assert pair.sampling == Sampling(temperature=0.6, top_k=50, top_p=0.9, repetition_penalty=1.3)
    given = {"temperature": 0.0, "top_k": 7, "frequency_penalty": 0.5}
    assert pair.own_sampling({"top_k": 7, "top_p": 1.0}) == Sampling(temperature=0.6, top_k=7, repetition_penalty=1.3)
    assert pair.own_sampling(given) == Sampling(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.5)
    assert pair_of(top_p=0.9).own_sampling({"temperature": 0.7}) == Sampling(temperature=0.7, top_p=0.9)


def test_a_given_penalty_replaces_one_behind_a_bias_of_sequences():
    settings = {"do_sample": True, "sequence_bias": [[[9], 4.0]]}
    pair = pair_of(repetition_penalty=1.3, **settings)
    for theirs, ours in steps(pair_of(repetition_penalty=1.7, **settings), pair.own_sampling({"repetition_penalty": 1.7})):
        assert torch.allclose(theirs, ours, atol=2e-6)


def test_a_given_bias_joins_the_tokens_that_the_model_forbids_and_brings_none_back():
    never = -float("inf")
    pair = pair_of(suppress_tokens=[7, 8])
    assert pair.own_sampling({"logit_bias": {9: 2.0}}).logit_bias == {7: never, 8: never, 9: 2.0}
    assert pair.own_sampling({"logit_bias": {7: 2.0}}).logit_bias == {7: never, 8: never}


def test_truncation_of_the_most_likely_text_is_refused():
    with pytest.raises(ConfigError, match=r"top_p was given, but the target's generation config .* give a temperature too"):
        pair_of().own_sampling({"top_p": 0.9})


def test_what_no_sampling_can_say_is_told_when_a_pair_is_loaded(tmp_path, caplog):
    folder = save_tiny(tmp_path)
    change_json(folder / "generation_config.json", stop_strings=["###"])
    with caplog.at_level("WARNING", logger="draftwood"):
        draftwood.load(folder, options={"backend": "torch"})
    assert "the model's generation config says stop_strings=['###']: give them as stop strings" in caplog.text


def test_the_method_of_a_pair_is_that_of_its_own_temperature():
    pair = pair_of()
    assert pair.method() == pair.method(temperature=0.0) != pair.method(temperature=1.0)


def test_several_forced_ends_are_refused_where_generate_draws_one_of_them():
    assert pair_of(forced_eos_token_id=[5, 7]).final_token == 5
    with pytest.raises(ConfigError, match=r"forced_eos_token_id=\[5, 7\], of which generate draws one"):
        pair_of(do_sample=True, forced_eos_token_id=[5, 7]).own_sampling()


def test_suppressed_tokens_that_the_model_does_not_know_are_passed_over_as_in_generate():
    assert pair_of(suppress_tokens=[3, 99999, -1]).own_sampling().logit_bias == {3: -float("inf")}


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("forced_eos_token_id", (99999, -1, "x", []), "forced_eos_token_id=.*, but the target knows tokens 0 to"),
        (
            "eos_token_id",
            ("x", [None], 1.5),
            "the generation config of the target names end-of-text token .* tokens 0 to 60",
        ),
        ("eos_token_id", (999999, [0, VOCAB], -1), "end-of-text token .*, but the target knows tokens 0 to 60: correct"),
        ("bad_words_ids", ([5],), r"generation config holds a value that .*: correct generation_config\.json"),
        ("sequence_bias", ({"5": 1.0},), "generation config holds a value that"),
        ("no_repeat_ngram_size", (-1,), "generation config holds a value that"),
        ("min_new_tokens", ("x",), "generation config holds a value that"),
    ],
)
def test_values_that_are_none_are_refused_in_a_sentence(name, values, said):
    for value in values:
        with pytest.raises(ModelError, match=said):
            pair_of(**{name: value}).own_sampling()
