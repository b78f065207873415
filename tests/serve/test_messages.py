"""Messages as clients and agents keep them reach the chat template, or are refused in a sentence that says why."""

import pytest

from draftwood.serve.openai.schemas import ToolCall
from tests.serve import shapes
from tests.serve.client import answer, chat, parts_of, refused, text_of
from tests.serve.conftest import loaded, make_service, serving
from tests.tiny_chat import CALLS, TEMPLATE, adding, chat_tokenizer, save_chat

CALL = {"id": "c1", "type": "function", "function": {"name": "the", "arguments": '{"a": 1}'}}
READS = "{{ enable_thinking }}{{ reasoning_effort }}"


@pytest.fixture(scope="module")
def able(tmp_path_factory):
    """A model whose template reads tool calls, reasoning and values of its own."""
    template = CALLS.replace("<end>", "{{ m['reasoning_content'] }}<end>") + READS
    folder = save_chat(tmp_path_factory.mktemp("able") / "target", tokenizer=chat_tokenizer(template))
    with serving(make_service(loaded([folder]), method="ar")) as found:
        yield found, loaded([folder])


def user(text="the fox ran", **fields):
    return {"role": "user", "content": text, **fields}


def assistant(content=None, **fields):
    return {"role": "assistant", "content": content, **fields}


def ids(client, messages, **fields):
    """The prompt of a chat, which /tokenize shows and a chat reads."""
    shown = answer(client, {"messages": messages, **fields}, path="/tokenize")
    found = answer(client, chat(messages=messages, max_tokens=1, **fields))
    assert "warnings" not in found
    shapes.check_chat(found)
    assert found["usage"]["prompt_tokens"] == shown["count"]
    return list(shown["tokens"])


def unread(client, messages, **fields):
    """The error, which is the same for a chat and for /tokenize."""
    error = refused(client, chat(messages=messages, **fields))
    assert refused(client, {"messages": messages, **fields}, path="/tokenize") == error
    return error


# ---- messages ----


@pytest.mark.parametrize(("messages", "same"), [
    ([user(), assistant(None), user("go")], [user(), assistant(""), user("go")]),
    ([user(), {"role": "assistant"}, user("go")], [user(), assistant(""), user("go")]),
    ([user(), assistant("a", tool_calls=[]), user("b")], [user(), assistant("a"), user("b")]),
    ([user(), assistant("a", tool_calls=None, refusal=None, audio=None, annotations=[], function_call=None), user("b")],
     [user(), assistant("a"), user("b")]),
    ([user(name="bob")], [user()]),
    ([user(tool_call_id=None, reasoning_content=None)], [user()]),
    ([user(), assistant("a", reasoning_content="the hen"), user("b")], [user(), assistant("a"), user("b")]),
    ([{"role": "developer", "content": "the hen"}, user()], [{"role": "system", "content": "the hen"}, user()]),
    ([user([{"type": "text", "text": "a dog"}, {"type": "text", "text": "ran"}])], [user("a dog\nran")]),
])  # fmt: skip
def test_fields_of_messages_that_a_template_does_not_read_change_nothing(client, messages, same):
    assert ids(client, messages) == ids(client, same)


def test_what_an_agent_keeps_reaches_a_template_with_tools(able):
    """vllm-project/vllm#21089, mistralai/mistral-common#324: histories with null contents, tool calls and their answers."""
    client, pair = able
    messages = [
        user("a dog"), assistant(None, tool_calls=[{**CALL, "index": 0}], reasoning_content="on the hill"),
        {"role": "tool", "tool_call_id": "c1", "content": "Sunny"}, assistant(""), user("So?", name="ann"),
    ]  # fmt: skip
    call = {**CALL, "function": {"name": "the", "arguments": {"a": 1}}}
    read = [messages[0], {**messages[1], "content": "", "tool_calls": [call]}, *messages[2:]]
    fields = {"tool_choice": "none", "parallel_tool_calls": False, "seed": -1, "max_tokens": 1, "max_completion_tokens": 1}
    remarks = answer(client, chat(messages=messages, **fields))["warnings"]
    assert remarks == ["the server has no field 'messages.1.tool_calls.0.index', so it was ignored"]
    found = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
    assert found == pair.tokenizer.apply_chat_template(read, add_generation_prompt=True, return_dict=False)
    text = pair.tokenizer.decode(found)
    assert '[the {"a": 1}]on the hill' in text
    assert "tool\nSunny" in text


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "null"])
def test_arguments_that_are_no_object_are_given_as_they_are(able, arguments):
    client, pair = able
    call = {"type": "function", "function": {"name": "the", "arguments": arguments}}
    messages = [user(), assistant(tool_calls=[call]), user("go")]
    wanted = [user(), assistant("", tool_calls=[call]), user("go")]
    assert ids(client, messages) == pair.tokenizer.apply_chat_template(wanted, add_generation_prompt=True, return_dict=False)


def test_arguments_of_many_levels_are_given_as_they_are():
    function = {"name": "the", "arguments": '{"a":' * 100_000}
    assert ToolCall.model_validate({"function": function}).to_template()["function"] == function


@pytest.mark.parametrize(("messages", "said"), [
    ([user([{"type": "image_url", "image_url": {"url": "data:"}}])], "but this model takes no images"),
    ([user([{"type": "input_audio", "input_audio": {}}])], "but this model takes no audio"),
    ([user([{"type": "text"}])], "part 0 of messages[0] holds the text None"),
    ([user(), assistant("a")], "set continue_final_message"),
    ([{"role": "user"}], "messages[0] has no content"),
])  # fmt: skip
def test_what_the_model_cannot_read_is_refused_in_a_sentence(client, messages, said):
    error = unread(client, messages)
    assert said in error["message"]
    assert error["param"] == "messages"


# ---- a message that is continued ----


@pytest.mark.parametrize("fields", [{}, {"add_generation_prompt": False}])
def test_a_last_message_is_continued(client, pair, fields):
    messages = [user(), assistant("the he")]
    fields = {**fields, "continue_final_message": True}
    wanted = pair.tokenizer.apply_chat_template(messages, continue_final_message=True, return_dict=False)
    assert ids(client, messages, **fields) == wanted
    text = pair.generate(wanted, temperature=1.0, seed=1, max_new_tokens=16).text
    for stream in (False, True):
        parts = parts_of(client, chat(messages=messages, **fields), stream=stream)
        assert text_of(*(part["choices"][0] for part in parts)) == text


@pytest.mark.parametrize(("messages", "fields", "param"), [
    ([user()], {"continue_final_message": True}, "continue_final_message"),
    ([user(), assistant("a")], {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ([user()], {"add_generation_prompt": False}, "add_generation_prompt"),
    ([user()], {"continue_final_message": 1}, "continue_final_message"),
])  # fmt: skip
def test_nothing_to_continue_is_refused(client, messages, fields, param):
    assert unread(client, messages, **fields)["param"] == param


def test_the_neutral_values_of_a_continuation_are_taken(client):
    neutral = {"continue_final_message": False, "add_generation_prompt": True, "chat_template_kwargs": {}}
    assert ids(client, [user()], **neutral) == ids(client, [user()])


# ---- values for the chat template ----


def test_values_reach_the_chat_template(able, client):
    found, pair = able
    values = {"enable_thinking": False}
    wanted = pair.tokenizer.apply_chat_template([user()], add_generation_prompt=True, return_dict=False, **values)
    assert ids(found, [user()], chat_template_kwargs=values) == wanted
    remarks = answer(client, chat(chat_template_kwargs=values))["warnings"]
    assert remarks == ["the model's chat template does not read 'enable_thinking', so it was ignored"]


def test_the_effort_of_reasoning_is_for_templates_that_read_it(able, client):
    found, pair = able
    wanted = pair.tokenizer.apply_chat_template(
        [user()], add_generation_prompt=True, return_dict=False, reasoning_effort="low"
    )
    assert ids(found, [user()], reasoning_effort="low") == wanted
    assert ids(found, [user()], chat_template_kwargs={"reasoning_effort": "low"}, reasoning_effort="low") == wanted
    error = unread(found, [user()], chat_template_kwargs={"reasoning_effort": "high"}, reasoning_effort="low")
    assert error["param"] == "reasoning_effort"
    assert answer(client, chat(reasoning_effort="low"))["warnings"] == [
        "the model's chat template does not read 'reasoning_effort', so it was ignored"]  # fmt: skip
    assert ids(client, [user()], reasoning_effort="none") == ids(client, [user()])
    assert "warnings" not in answer(client, chat(reasoning_effort="none"))


@pytest.mark.parametrize("values", ["{}", [], 1, {"messages": []}, {"a": {"b": ["\x00", 1e300, None]}}])
def test_values_are_an_object_of_other_names_than_the_templates_own(client, values):
    if "a" in (values if isinstance(values, dict) else ()):
        assert answer(client, chat(chat_template_kwargs=values))
    else:
        assert unread(client, [user()], chat_template_kwargs=values)["param"] == "chat_template_kwargs"


def test_a_long_value_is_refused_before_it_is_encoded(able):
    error = unread(able[0], [user()], chat_template_kwargs={"enable_thinking": "the fox ran to the hill. " * 100_000})
    assert error["code"] == "context_length_exceeded"


# ---- the beginning of a text ----


@pytest.mark.parametrize("adds", [True, False])
def test_a_chat_begins_once_and_a_completion_as_its_tokenizer_says(tmp_path, adds):
    """abetlen/llama-cpp-python#1501, ggml-org/llama.cpp#7898: the template and the tokenizer both write a beginning."""
    tokenizer = adding(before=adds)
    tokenizer.chat_template = "{{ bos_token }}" + TEMPLATE
    tokenizer.add_special_tokens({"additional_special_tokens": ["<s>"]})
    folder = save_chat(tmp_path / "target", tokenizer=tokenizer, bos_token_id=tokenizer.bos_token_id)
    with serving(make_service(loaded([folder]), method="ar")) as client:
        begin, found = tokenizer.bos_token_id, ids(client, [user()])
        wanted = tokenizer.apply_chat_template([user()], add_generation_prompt=True, return_dict=False)
        assert found == wanted
        assert found.count(begin) == 1
        rendered = tokenizer.apply_chat_template([user()], add_generation_prompt=True, tokenize=False)
        assert client.post("/tokenize", json={"prompt": rendered}).json()["tokens"] == wanted
        bare = tokenizer("the fox", add_special_tokens=False)["input_ids"]
        for special, text, tokens in (
            (None, "the fox", [begin] * adds + bare), (True, "the fox", [begin] * adds + bare), (False, "the fox", bare),
            (False, "<begin>the fox", [begin, *bare]),
        ):  # fmt: skip
            fields = {} if special is None else {"add_special_tokens": special}
            assert client.post("/tokenize", json={"prompt": text, **fields}).json()["tokens"] == tokens
            body = {"prompt": text, "max_tokens": 4, "seed": 1, "return_token_ids": True, **fields}
            found = answer(client, body)
            assert found["usage"]["prompt_tokens"] == len(tokens)
            assert found["choices"] == answer(client, {**body, "prompt": tokens})["choices"]
