"""What a chat template gets: messages as agents keep them, a last message to continue, settings, one beginning of text."""

import pytest

import draftwood
from draftwood import ConfigError, LoadOptions
from draftwood.engine.arguments import tokenized
from tests.api.test_chat import user
from tests.tiny_chat import TEMPLATE, adding, chat_tokenizer, save_chat

USER = user("the fox ran")
CALL = {"id": "c1", "type": "function", "function": {"name": "the", "arguments": {"a": 1}}}


def pair_of(folder, template=TEMPLATE, **tokenizer):
    save_chat(folder / "target", tokenizer=chat_tokenizer(template, **tokenizer))
    return draftwood.load(folder / "target", options=LoadOptions(dtype="float32", device="cpu", backend="torch"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A model whose template reads roles and contents only."""
    return pair_of(tmp_path_factory.mktemp("plain"))


def ids(pair, messages, **settings):
    return list(pair.chat_request(messages, **settings).prompt)


def written(pair, messages, **settings):
    """What ``transformers`` makes of the messages."""
    settings = {"add_generation_prompt": True, **settings}
    return list(pair.tokenizer.apply_chat_template(messages, return_dict=False, **settings))


# ---- messages ----


def test_fields_that_say_nothing_do_not_reach_the_template(tmp_path):
    strict = "{% for m in messages %}{% for name in m %}{{ name }} {% endfor %}{% endfor %}"
    pair = pair_of(tmp_path, strict)
    message = {**USER, "tool_calls": [], "refusal": None, "name": "ann"}
    assert pair.tokenizer.decode(ids(pair, [message])) == "role content name "


REFUSES = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE
OMITS = "{% for m in messages if m['role'] != 'system' %}<s>{{ m['role'] }}\n{{ m['content'] }}<end>\n{% endfor %}"


FIRST = "{% for m in messages[1:] %}{% if m['role'] == 'system' %}{{ raise_exception('first') }}{% endif %}{% endfor %}"
ORDER = (
    "{% for m in messages %}{% if (m['role'] == 'user') != loop.index0 is even %}{{ raise_exception('must alternate') }}"
    "{% endif %}{% endfor %}"
)


ALONE = (
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{% endif %}"
    "{% set messages = messages | rejectattr('role', 'eq', 'system') | list %}"
)
DROPS = "{% for m in messages %}{% if loop.first or m['role'] == 'user' %}{{ m['role'] }}{{ m['content'] }}{% endif %}"
HEN, DOG = ({"role": "system", "content": text} for text in ("the hen", "a dog"))
ANSWER = {"role": "assistant", "content": "a dog"}


@pytest.mark.parametrize(("template", "given", "wanted"), [
    # Gemma 2 and Mixtral refuse a text of the system, and others leave it out without a word.
    *((template, *case) for template in (REFUSES, OMITS) for case in (
        ([HEN, DOG, USER], [user("the hen\n\na dog\n\nthe fox ran")]), ([HEN], [user("the hen")]))),
    # Qwen3.5 and Mistral refuse a later one, and SmolLM3 leaves it out.
    *((template + TEMPLATE, *case) for template in (FIRST, ALONE) for case in (
        ([USER, ANSWER, HEN, USER], [USER, ANSWER, user("the hen\n\nthe fox ran")]),
        ([HEN, HEN, USER], [{**HEN, "content": "the hen\n\nthe hen"}, USER]))),
    # Agents send the system's and the developer's, and the template of gpt-oss writes the first message alone.
    ("{# developer #}" + DROPS + "{% endfor %}", [HEN, {**DOG, "role": "developer"}, USER],
     [{**HEN, "content": "the hen\n\na dog"}, USER]),
    # A developer is the system where the template knows none.
    (TEMPLATE, [{**HEN, "role": "developer"}, USER], [HEN, USER]),
    (TEMPLATE + "{# developer #}", [{**HEN, "role": "developer"}, USER], [{**HEN, "role": "developer"}, USER]),
])  # fmt: skip
def test_no_text_of_the_system_or_the_developer_is_lost(tmp_path, template, given, wanted):
    pair = pair_of(tmp_path, template)
    assert ids(pair, given) == written(pair, wanted)


def test_messages_of_any_order_are_written_where_the_template_only_refuses_it(tmp_path):
    """As those of Gemma and Mistral do: agents send a text after the results of tools."""
    pair, chat = pair_of(tmp_path, ORDER + TEMPLATE), [USER, user("a dog")]
    assert ids(pair, chat) == written(pair, chat, chat_template=TEMPLATE)
    by_place = TEMPLATE.replace("m['role']", "['user', 'assistant'][loop.index0 % 2]")  # else a user speaks as the assistant
    for template, why in ((ORDER.replace("alternate", "end") + TEMPLATE, "end"), (ORDER + by_place, "alternate")):
        with pytest.raises(ConfigError, match=f"refuses these messages: must {why}"):
            ids(pair_of(tmp_path / why, template), chat)


def test_thoughts_are_parts_of_the_content_where_the_template_reads_them_there(tmp_path):
    """As those of Ministral 3 and Magistral."""
    pair = pair_of(tmp_path, (
        "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for b in m['content'] %}"
        "{% if b['type'] == 'thinking' %}({{ b['thinking'] }}){% else %}{{ b['text'] }}{% endif %}{% endfor %}{% endif %}"
        "{% endfor %}"
    ))  # fmt: skip
    answers = [{"role": "assistant", "content": text, "reasoning_content": "the hen"} for text in (" ran", "")]
    assert pair.tokenizer.decode(ids(pair, [USER, *answers, USER])) == "the fox ran(the hen) ran(the hen)the fox ran"
    both = pair_of(tmp_path / "both", pair.tokenizer.chat_template.replace("{% if", "{{ m['reasoning_content'] }}{% if", 1))
    assert pair.tokenizer.decode(ids(both, [USER, *answers, USER])) == "the fox ranthe hen ranthe henthe fox ran", "once"


@pytest.mark.parametrize("message", [
    {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "a dog"},
])  # fmt: skip
def test_a_template_without_tools_is_given_none(plain, message):
    with pytest.raises(ConfigError, match=r"messages\[1\] .* the target's chat template writes no tool calls"):
        plain.chat_request([USER, message, user("on")])


def test_parts_that_are_no_texts_are_refused_for_what_they_are(plain):
    for kind, what in (("image_url", "images"), ("input_audio", "audio"), ("video_url", "videos"), ("file", "files")):
        with pytest.raises(ConfigError, match=rf"messages\[0\] .* '{kind}', but this model takes no {what}: "):
            plain.chat_request([{"role": "user", "content": [{"type": kind}]}])
    with pytest.raises(ConfigError, match=r"type 'other', but this model takes texts only"):
        plain.chat_request([{"role": "user", "content": [{"type": "other"}]}])


def test_several_templates_without_a_usual_one_are_refused(tmp_path):
    pair = pair_of(tmp_path)
    pair.tokenizer.chat_template = {"a": TEMPLATE, "b": TEMPLATE}
    with pytest.raises(ConfigError, match="multiple chat templates"):
        pair.chat_request([USER])


# ---- a message that is continued ----


@pytest.mark.parametrize("text", ["the he", "", "the hen "])
def test_a_last_message_of_the_assistant_is_continued(plain, text):
    messages = [USER, {"role": "assistant", "content": text}]
    found = ids(plain, messages, continue_final_message=True)
    assert found == written(plain, messages, add_generation_prompt=False, continue_final_message=True)
    assert plain.tokenizer.decode(found).endswith(f"<s>assistant\n{text}")
    answer = plain.chat(messages, continue_final_message=True, max_new_tokens=6, seed=1)
    assert answer.token_ids == plain.generate(found, max_new_tokens=6, seed=1).token_ids


def test_without_such_a_message_there_is_nothing_to_continue(plain):
    with pytest.raises(ConfigError, match="continue_final_message is True, but the last message is no assistant's"):
        plain.chat_request([USER], continue_final_message=True)
    for name in ("stream", "continue_final_message"):
        with pytest.raises(ConfigError, match=f"{name} is 'no': give True or False"):
            plain.chat([USER], **{name: "no"})


def test_a_template_that_changes_the_last_message_cannot_continue_it(tmp_path):
    pair = pair_of(tmp_path, TEMPLATE.replace("m['content']", "m['content'] | upper"))
    with pytest.raises(ConfigError, match="chat template does not write the last message as it is") as found:
        pair.chat_request([USER, {"role": "assistant", "content": "the hen"}], continue_final_message=True)
    assert "fox" not in str(found.value).lower(), "the chat is no part of an error"


# ---- settings of the template ----


@pytest.mark.parametrize("name", [
    "self", "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize",
    "eos_token", "return_dict",
])  # fmt: skip
def test_names_that_the_template_has_already_are_refused(plain, name):
    with pytest.raises(ConfigError, match=f"chat_template_kwargs holds '{name}', which is not for settings"):
        plain.chat_request([USER], chat_template_kwargs={name: True})


@pytest.mark.parametrize("given", ["enable_thinking", [1], {1: 2}])
def test_settings_are_a_mapping_of_names(plain, given):
    with pytest.raises(ConfigError, match="chat_template_kwargs"):
        plain.chat_request([USER], chat_template_kwargs=given)


def test_only_the_token_that_the_tokenizer_added_is_left_out():
    begin = 280
    words = adding(before=False)("the fox")["input_ids"]
    assert tokenized(adding(), "<begin><begin>the fox") == [begin, begin, *words]
    assert tokenized(adding(before=False), "<begin><begin>the fox") == [begin, begin, *words]
    assert tokenized(adding(after=True), "<begin>the fox") == [begin, *words, 0]
    assert tokenized(adding(), "the <begin> fox")[0] == begin
    assert tokenized(adding(), "") == [begin]
    assert tokenized(adding(), "<begin>") == [begin]
