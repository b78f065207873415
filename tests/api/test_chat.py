"""Chats: the template's tokens, the model's defaults, and a memory that is kept from answer to answer."""

from dataclasses import replace
from itertools import pairwise

import pytest

import draftwood
from draftwood import ConfigError, LoadOptions, Pair
from draftwood.core.limits import Limits
from tests.faults.folders import save_tiny
from tests.tiny_chat import TEMPLATE, chat_tokenizer, save_chat

BACKENDS = ["torch", "native"]
QUESTIONS = ["the fox ran", "a dog sat on the hill", "and the red hen", "once"]
SHORT = {"max_new_tokens": 14}


def pair_of(*folders, backend="torch"):
    options = LoadOptions(dtype="float32", device="cpu", backend=backend)
    return draftwood.load(*folders, options=options)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def turns(pair, **settings):
    """The messages and the answers of a chat of several turns."""
    messages = [{"role": "system", "content": "the hen"}]
    for text in QUESTIONS:
        messages = [*messages, user(text)]
        result = pair.chat(messages, **SHORT, **settings)
        yield messages, result
        messages = [*messages, assistant(result.text)]


def fresh(pair, messages, **settings):
    """The answer to the messages without any memory."""
    request = pair.chat_request(messages)
    limits = Limits(**SHORT, stop_token_ids=request.limits.stop_token_ids)
    return pair.generate(list(request.prompt), limits=limits, **settings)


@pytest.fixture(scope="module")
def plain(folders):
    """Without a draft model."""
    return pair_of(folders[0])


@pytest.fixture(scope="module", params=BACKENDS)
def shared(folders, request):
    return pair_of(*folders, backend=request.param)


def check_turns(pair, **settings):
    chat = list(turns(pair, **settings))
    assert [result.text for _, result in chat] == [fresh(pair, messages, **settings).text for messages, _ in chat]
    for (messages, _), (_, result) in pairwise(chat):
        assert result.stats.cached_tokens >= len(pair.chat_request(messages).prompt) - 1, "a turn is not read again"
    assert len({result.text for _, result in chat}) > 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["auto", "ar", "rsd-s", "ngram"])
def test_every_answer_is_that_of_a_fresh_start(shared, method, temperature):
    check_turns(shared, method=method, temperature=temperature, seed=3)


def test_other_texts_and_methods_between_two_turns_do_no_harm(folders):
    """Laws of the prefix cache, which keeps the chat, are those of ``tests/engine/test_prefixes.py``."""
    pair, messages = pair_of(*folders), [user("the fox ran")]
    messages += [assistant(pair.chat(messages, temperature=0, **SHORT).text), user("a dog")]
    wanted = fresh(pair_of(*folders), messages, temperature=0).text
    plain = draftwood.Decoder(pair.target, None, pair.decoder("ar").pipeline.verifier, tokenizer=pair.tokenizer)
    for other in (
        lambda: pair.generate("once upon", max_new_tokens=5),
        lambda: pair.generate(["a hen", "a dog and a hen"], max_new_tokens=5),
        lambda: list(plain.stream([pair.request(pair.encode("the fox"))], draftwood.Sampling(temperature=0))),
        lambda: pair.chat(messages, method="ngram", temperature=0, **SHORT),
    ):
        other()
        assert pair.chat(messages, temperature=0, **SHORT).text == wanted


# ---- the prompt and the end ----


def test_a_piece_for_every_round_makes_the_same_text(folders):
    pair = pair_of(*folders)
    whole = pair.chat([user("a dog")], seed=4, temperature=1.0, **SHORT)
    pieces = list(pair.chat([user("a dog")], seed=4, temperature=1.0, stream=True, **SHORT))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert pieces[-1].finish_reason == whole.finish_reason


STOPPING = TEMPLATE.replace("<end>", "<s>")


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (TEMPLATE, "<end>"),
        (STOPPING, "<s>"),
        (TEMPLATE.replace("<end>", " <s>"), "<s>"),
        (TEMPLATE.replace("<end>", "."), None),
        (TEMPLATE.replace("m['content']", "m['content'] | upper"), "<end>"),
        (TEMPLATE.replace("{{ m['role'] }}", "{{ raise_exception('no') if m['role'] == 'assistant' }}"), None),
    ],
)
def test_an_answer_ends_with_the_token_that_ends_a_turn(tmp_path, template, end):
    pair = pair_of(save_chat(tmp_path, tokenizer=chat_tokenizer(template)))
    wanted = () if end is None else (pair.tokenizer.convert_tokens_to_ids(end),)
    request = pair.chat_request([user("a dog")])
    assert request.limits.stop_token_ids == wanted
    assert pair.chat_request([user("a dog")], {"stop_token_ids": (7,)}).limits.stop_token_ids == (7, *wanted)
    assert pair.chat_request([user("a dog")], {"ignore_eos": True}).limits.stop_token_ids == ()


# ---- the model's defaults ----


def test_the_sampling_and_the_length_are_the_models_own(tmp_path):
    own = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "max_new_tokens": 5}
    pair = pair_of(save_chat(tmp_path, generation=own))
    pair_limits = Limits(max_new_tokens=5, stop_token_ids=pair.chat_request([user("a")]).limits.stop_token_ids)
    assert replace(pair.chat_limits, stop_token_ids=pair_limits.stop_token_ids) == pair_limits
    prompt = list(pair.chat_request([user("a dog")]).prompt)
    found = pair.chat([user("a dog")], seed=6)
    sampling = draftwood.Sampling(temperature=0.7, top_p=0.8, top_k=50)
    assert found.token_ids == pair.generate(prompt, seed=6, limits=pair_limits, sampling=sampling).token_ids
    assert len(found.token_ids) <= 5
    assert pair.chat([user("a dog")], temperature=0).token_ids == pair.chat([user("a dog")], temperature=0).token_ids


def test_a_model_without_defaults_answers_greedily_and_at_length(plain):
    assert plain.sampling.greedy
    assert plain.chat_limits == Limits(max_new_tokens=1024)
    assert plain.limits == Limits(), "a plain text keeps its own limits"


# ---- what is refused ----


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ("hello", r"messages is 'hello': give a list of messages"),
        ({"role": "user", "content": "x"}, r"messages is .*: give a list"),
        ([], r"messages is empty: give a list"),
        (["hello"], r"messages\[0\] is 'hello': give a mapping with role and content"),
        ([{"role": "user", "content": "x", 5: "y"}], r"messages\[0\] is .*: give a mapping with role and content"),
        ([{"content": "x"}], r"messages\[0\] has no role"),
        ([user("a"), {"role": "user"}], r"messages\[1\] has no content"),
        ([{"role": "user", "content": None}], r"messages\[0\] has no content"),
        ([{"role": "bot", "content": "x"}], r"messages\[0\] has role 'bot': give one of system, developer, user, assistant"),
        ([{"role": ["user"], "content": "x"}], r"messages\[0\] has role \['user'\]"),
        ([user(3)], r"the content of messages\[0\] is 3: give a text, or a list of parts"),
        ([user("\ud83d")], r"content of messages\[0\] is no Unicode text"),
        ([user("a"), assistant("b")], r"the last message is the assistant's.*continue_final_message"),
        ([{"role": "user", "content": ["x"]}], r'part 0 of messages\[0\] is .x.: give \{"type": "text"'),
        ([{"role": "user", "content": [{"type": "text", "text": 3}]}], r"part 0 of messages\[0\] holds the text 3"),
    ],
)
def test_bad_messages_are_refused_in_one_sentence(plain, messages, sentence):
    with pytest.raises(ConfigError, match=sentence):
        plain.chat(messages)


def test_a_model_without_a_template_is_refused(tmp_path):
    pair = pair_of(save_tiny(tmp_path))
    with pytest.raises(ConfigError, match="has no chat template, so it is no chat model"):
        pair.chat([user("a")])
    with pytest.raises(ConfigError, match="has no chat template"):
        Pair(pair.target.model, None, None).chat([user("a")])


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{{ raise_exception('roles must\n alternate') }}", "refuses these messages: roles must alternate"),
        ("{% if %}", "refuses these messages: "),
        ("{{ messages[7]['content'] }}", "refuses these messages: "),
        ("{# nothing #}", "writes nothing for these messages"),
    ],
)
def test_a_template_that_refuses_the_messages_says_why(tmp_path, template, sentence):
    pair = pair_of(save_chat(tmp_path, tokenizer=chat_tokenizer(template)))
    with pytest.raises(ConfigError, match=sentence):
        pair.chat([user("a")])


def test_answers_have_log_probabilities_also_where_the_chat_so_far_is_kept(folders):
    pair = pair_of(*folders)
    for messages, result in turns(pair, temperature=1.0, seed=3, logprobs=1):
        assert result.logprobs is not None
        prompt = pair.chat_request(messages).prompt
        wanted = pair.prompt_logprobs([*prompt, *result.token_ids], top=1)[len(prompt) :]
        assert [one.token for one in result.logprobs] == result.token_ids
        assert [one.logprob for one in result.logprobs] == pytest.approx([one and one.logprob for one in wanted], abs=1e-3)
    pieces = pair.chat([user("a dog")], seed=4, stream=True, logprobs=0, **SHORT)
    assert all(len(piece.logprobs or []) == len(piece.tokens) for piece in pieces)
