"""Tools reach the model, calls and reasoning reach the client: whole, streamed, and held to schemas where they must come."""

import json
import re
import sys
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, islice
from typing import get_args

import jsonschema
import pytest
import torch

from draftwood import Stateless
from draftwood.grammar.constraint import Grammars
from draftwood.grammar.grammar import Grammar
from draftwood.sampling.processors import ByPrompt
from draftwood.serve.http.errors import ApiError
from draftwood.serve.http.settings import ToolParser
from draftwood.serve.openai import prepare, reading
from draftwood.serve.openai.formats import FORMATS
from draftwood.serve.openai.message import AnswerReader
from draftwood.serve.openai.reading import Reading
from draftwood.serve.openai.tagged import QWEN, Nesting
from draftwood.serve.openai.tools import Function, grammar_of_calls
from tests.grammar.schemas import compact
from tests.grammar.tiny import letters
from tests.serve import shapes
from tests.serve.client import CHAT, MESSAGES, answer, chat, refused, streamed
from tests.serve.conftest import DRAWS, loaded, make_service, serving
from tests.serve.interfaces import MESSAGES_ROUTE, OLLAMA, RESPONSES, Said, assembled, events_of, request, said
from tests.tiny_chat import CALLS, TEMPLATE, chat_tokenizer, save_chat

NAMED = {"type": "function", "function": {"name": "get_weather"}}
ONE_OF_TWO = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]},
}
CITY = '{"city": "Bern", "days": 2}'
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "maximum": 9}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [WEATHER, TIME]
NATIVE = "{% if tools %}<s>tools\n{% for tool in tools %}{{ tool | tojson }}{% endfor %}<end>\n{% endif %}"
"""Writes tools, and says nothing of the format of calls."""
SIGNS = FORMATS["deepseek_v31"].signs
HERMES, LLAMA, MISTRAL, ARGS, TAGGED, OTHER, GLM, DEEPSEEK_V3, DEEPSEEK, HARMONY, GEMMA, GRANITE, LFM2 = (
    NATIVE + CALLS + "{# " + sign + " #}"
    for sign in (
        "<tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[TOOL_CALLS][ARGS]", "<tool_call><function=a><parameter=b>",
        "<tool_call><function=a>", "<tool_call><arg_key>", SIGNS[2] + "```json", SIGNS[2], "<|channel|> {{ m['thinking'] }}",
        "<|tool_call> <|channel>thought tool_call_id", "<|tool_call|>", "<|tool_call_start|>",
    )
)  # fmt: skip

PHI = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}"
    "{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def wrapped(name, arguments):
    return f'{{"type": "function", "function": {{"name": "{name}", "arguments": {arguments}}}}}'


def hermes(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def tagged(name, **arguments):
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def deepseek(name, arguments, *, begin="", middle=SIGNS[2], end=""):
    return f"{SIGNS[1]}{begin}{name}{middle}{arguments}{end}{SIGNS[3]}"


V3 = {"begin": f"function{SIGNS[2]}", "middle": "\n```json\n", "end": "\n```"}


def harmony(name, arguments):
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"


class Script:
    """What the model writes; None leaves it free. ``later`` are the texts of the requests after the next one."""

    def __init__(self, pair):
        self.pair = pair
        self.text = None
        self.later = []

    def processor(self):
        tokens = [*self.pair.tokenizer(self.text, add_special_tokens=False)["input_ids"], 0]

        def behind(length):
            def forced(ids, scores):
                wanted = tokens[min(max(0, ids.shape[1] - length), len(tokens) - 1)]
                found = torch.full_like(scores, -torch.inf)
                found[:, wanted] = 0
                return found

            return Stateless(forced)

        return ByPrompt(behind)


@contextmanager
def writing(folder, monkeypatch, template=TEMPLATE, *, special=None, length=2048, opened=serving, ends=(), **options):
    """A server whose model writes a script, in texts of this length. ``special`` are further special tokens, some of which
    may be ``ends`` of a text."""
    tokenizer = chat_tokenizer(template)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<s>", *(special or ())]})
    generation = DRAWS | ({"eos_token_id": [0, *tokenizer.convert_tokens_to_ids(list(ends))]} if ends else {})
    folders = [
        save_chat(folder / name, tokenizer=tokenizer, generation=generation, layers=layers, max_position_embeddings=length)
        for name, layers in (("target", 2), ("draft", 1))
    ]
    script, plain = Script(pair := loaded(folders)), prepare.sampling_of

    def scripted(*given):
        found = plain(*given)
        if given[0] is not pair or script.text is None:
            return found
        found = replace(found, processors=[script.processor()])
        script.text = script.later.pop(0) if script.later else script.text
        return found

    monkeypatch.setattr(prepare, "sampling_of", scripted)
    with opened(make_service(pair, **options)) as client:
        yield client, script


def reply(client, script, text, **fields):
    """The choice of an answer in which the model writes a text: whole, and the same from a stream, drafted and not."""
    script.text = text
    body = {"tools": TOOLS, "max_tokens": 800, **fields}
    found = dict(answer(client, chat(**body))["choices"][0])
    for speculative in (True, False):
        assert said(from_stream(client, speculative=speculative, **body)) == said(found)
    return found


def from_stream(client, **fields):
    """The choice that the chunks of a stream make."""
    return assembled(streamed(client, chat(**fields)))


def calls_of(choice):
    """Names and arguments of the calls of a choice."""
    calls = choice["message"].get("tool_calls") or ()
    assert len({call["id"] for call in calls}) == len(calls)
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


@pytest.fixture(scope="module")
def patch():
    with pytest.MonkeyPatch.context() as found:
        yield found


@pytest.fixture(scope="module")
def plain(tmp_path_factory, patch):
    """A model whose template has no tools."""
    with writing(tmp_path_factory.mktemp("plain"), patch) as found:
        yield found


@pytest.fixture
def able(tmp_path, monkeypatch):
    """A model whose template has tools."""
    with writing(tmp_path, monkeypatch, HERMES) as found:
        yield found


def prompt_of(client, script, **fields):
    """What the model reads."""
    ids = answer(client, {"messages": MESSAGES, **fields}, path="/tokenize")["tokens"]
    return str(script.pair.tokenizer.decode(ids))


# ---- calls ----


@pytest.mark.parametrize(("text", "content", "calls"), [
    (hermes("get_weather", CITY), None, [("get_weather", CITY)]),
    ("It is \n" + hermes("get_weather", CITY) + "\n" + hermes("get_time", "{}"), "It is",
     [("get_weather", CITY), ("get_time", "{}")]),
    ("the fox ran", "the fox ran", []),
    ("a <tool_call> is a tag, <tool", "a <tool_call> is a tag, <tool", []),
    (hermes("get_weather", '{"city": "</tool_call>{\\"\\\\"}'), None, [("get_weather", '{"city": "</tool_call>{\\"\\\\"}')]),
    (hermes("get_weather", "{no: json]}"), None, [("get_weather", "{no: json]}")]),
    (hermes("get_weather", "2"), None, [("get_weather", "2")]),
    ('<tool_call>{"arguments": {"city": "Bern"}, "name": "get_weather"}</tool_call>', None,
     [("get_weather", '{"city": "Bern"}')]),
    ('<tool_call>{"name": "get_time"}</tool_call>', None, [("get_time", "{}")]),
    *((text, text, []) for text in ('<tool_call>{"name": "get_weather"}</tool_call>',
                                    '<tool_call>{"name": "get_weather", "arguments": null}</tool_call>')),
    ('<tool_call>{"name": "get_time", "arguments": []}</tool_call>', None, [("get_time", "[]")]),
    (hermes("get_weather", json.dumps(CITY)), None, [("get_weather", CITY)]),
    (hermes("get_snow", "{}"), None, [("get_snow", "{}")]),
    ("<tool_call>[]</tool_call>", "<tool_call>[]</tool_call>", []),
    (hermes("get_time", "{}") + " and on", "and on", [("get_time", "{}")]),
])  # fmt: skip
def test_calls_are_read_whole_and_from_streams(plain, text, content, calls):
    found = reply(*plain, text)
    assert (found["message"]["content"] or "").strip() == (content or "")
    assert found["message"]["content"] != ""
    assert calls_of(found) == calls
    assert found["finish_reason"] == ("tool_calls" if calls else "stop")


def test_several_tokens_of_a_round_make_several_deltas(plain):
    """The script is drafted too, so a round brings up to three tokens; each chunk is as OpenAI's."""
    client, script = plain
    script.text = hermes("get_weather", CITY) + "\n" + hermes("get_time", "{}")
    parts = streamed(client, chat(tools=TOOLS, max_tokens=800))
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert deltas[0] == {"role": "assistant", "content": ""}
    begins = [call for delta in deltas for call in delta.get("tool_calls", ()) if "id" in call]
    assert [(call["index"], call["function"]) for call in begins] == [
        (0, {"name": "get_weather", "arguments": ""}), (1, {"name": "get_time", "arguments": ""}),
    ]  # fmt: skip
    assert sum("tool_calls" in delta for delta in deltas) > 6
    assert parts[-1]["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 10
    whole = answer(client, chat(tools=TOOLS, max_tokens=800, n=2))
    shapes.check_chat(whole)
    assert all(len(choice["message"]["tool_calls"]) == 2 for choice in whole["choices"])


def test_log_probabilities_and_ids_come_with_calls(plain):
    client, script = plain
    script.text = hermes("get_time", "{}")
    body = chat(tools=TOOLS, max_tokens=800, logprobs=True, return_token_ids=True)
    whole = answer(client, body)["choices"][0]
    chunks = [part["choices"][0] for part in streamed(client, body)]
    assert [token for one in chunks for token in one.get("token_ids", ())] == whole["token_ids"]
    entries = [entry for one in chunks if one["logprobs"] for entry in one["logprobs"]["content"]]
    assert entries == whole["logprobs"]["content"]
    assert len(entries) == len(whole["token_ids"])


def test_one_call_may_be_all(plain):
    text = hermes("get_time", "{}") + hermes("get_weather", CITY)
    assert calls_of(reply(*plain, text, parallel_tool_calls=False)) == [("get_time", "{}")]


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": None}, {"tools": []}])
def test_a_text_without_tools_is_content(plain, fields):
    text = hermes("get_time", "{}")
    assert reply(*plain, text, **fields)["message"]["content"] == text
    assert prompt_of(*plain, tools=TOOLS, **fields) == prompt_of(*plain) if "tools" not in fields else True


# ---- the other formats ----


WRITTEN = [
    (HERMES, hermes("get_time", "{}"), [("get_time", "{}")]),
    (LLAMA, '{"name": "get_weather", "parameters": {"city": "Bern"}}; {"name": "get_time", "parameters": {}}',
     [("get_weather", '{"city": "Bern"}'), ("get_time", "{}")]),
    (LLAMA, '<|python_tag|>{"name": "get_time", "parameters": {}}', [("get_time", "{}")]),
    (LLAMA, '{"name": "Ann", "parameters": {}}', []),
    (LLAMA, 'Here: {"name": "get_time", "parameters": {}}', []),
    (MISTRAL, '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Bern"}}, {"name": "get_time", "arguments": {}}]',
     [("get_weather", '{"city": "Bern"}'), ("get_time", "{}")]),
    (MISTRAL, '[TOOL_CALLS][{"arguments": {}, "name": "get_time"}]', [("get_time", "{}")]),
    (TAGGED, tagged("get_weather", city="Bern", days="2") + "\n" + tagged("get_time"),
     [("get_weather", '{"city": "Bern", "days": 2}'), ("get_time", "{}")]),
    (TAGGED, "<tool_call>\n<function=get_weather>\n</function>\n</tool_call>", []),
    (TAGGED, tagged("get_weather", city="12")[:-30], []),
    (TAGGED, hermes("get_weather", CITY), []),
    (GLM, "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n<arg_key>days</arg_key>\n"
     "<arg_value>2</arg_value>\n</tool_call>\n<tool_call>get_time</tool_call>",
     [("get_weather", '{"city": "Bern", "days": 2}'), ("get_time", "{}")]),
    (GLM, "<tool_call>get_weather<arg_key>city</arg_key><arg_value>a\n<b></arg_value></tool_call>",
     [("get_weather", '{"city": "a\\n<b>"}')]),
    (GLM, "<tool_call>get_weather</tool_call>", []),
    (GLM, hermes("get_weather", CITY), []),
    (DEEPSEEK, f"{SIGNS[0]}{deepseek('get_weather', CITY)}{deepseek('get_time', '{}')}{SIGNS[4]}",
     [("get_weather", CITY), ("get_time", "{}")]),
    (DEEPSEEK, f"{SIGNS[0]} and no call", []),
    (DEEPSEEK_V3, f"{SIGNS[0]}{deepseek('get_weather', CITY, **V3)}\n{deepseek('get_time', '{}', **V3)}{SIGNS[4]}",
     [("get_weather", CITY), ("get_time", "{}")]),
    (HARMONY, harmony("get_weather", CITY), [("get_weather", CITY)]),
    (HARMONY, " to=functions.get_time<|channel|>commentary json<|message|>{}", [("get_time", "{}")]),
    (GEMMA, '<|tool_call>call:get_weather{city:<|"|>Bern}<tool_call|>"<|"|>,days:2}<tool_call|><|tool_call>call:get_time{}'
     "<tool_call|>", [("get_weather", '{"city": "Bern}<tool_call|>\\"", "days": 2}'), ("get_time", "{}")]),
    (GEMMA, f"<|tool_call>call:get_weather{CITY}<tool_call|>", [("get_weather", CITY)]),
    (GEMMA, "<|tool_call>call:get_time{a:NaN}<tool_call|>", []),
    *((GEMMA, f"<|tool_call>{text}", []) for text in ("call:get_weather{}<tool_call|>", "call:get_time{", "call:get_time{a}",
                                                      "call: none", "call:get_time{a:[}<tool_call|> so")),
    (GRANITE, f'<|tool_call|>[{{"name": "get_weather", "arguments": {CITY}}}, {{"arguments": {{}}, "name": "get_time"}}]',
     [("get_weather", CITY), ("get_time", "{}")]),
    (PHI, f'<|tool_call|>[{wrapped("get_weather", CITY)}, {wrapped("get_time", "{}")}]<|/tool_call|>',
     [("get_weather", CITY), ("get_time", "{}")]),
    (PHI, '<|tool_call|>[{"arguments": {}, "name": "get_time"}]<|/tool_call|>', [("get_time", "{}")]),
    (PHI, f'<|tool_call|>[{{"name": "get_weather", "arguments": {CITY}}}]<|/tool_call|>', [("get_weather", CITY)]),
    (PHI, '<|tool_call|>{"name": "get_time", "arguments": {}}<|/tool_call|>', [("get_time", "{}")]),
    (PHI, '<|tool_call|>[{"type": "function"}]<|/tool_call|>', []),
    (LFM2, """<|tool_call_start|>[get_weather(city='a) "b"', days=2), get_time()]<|tool_call_end|>""",
     [("get_weather", '{"city": "a) \\"b\\"", "days": 2}'), ("get_time", "{}")]),
    *((LFM2, f"<|tool_call_start|>{text}", [])
      for text in ("[get_weather()]", "[get_time(", "[get_time(1)]", "[get_time(a=b)]", "[get_weather(**{})]", "no call")),
    (ARGS, '[TOOL_CALLS]get_weather[ARGS]{"city": "Bern"}[TOOL_CALLS]get_time[ARGS]{}',
     [("get_weather", '{"city": "Bern"}'), ("get_time", "{}")]),
]  # fmt: skip
"""Templates, what a model writes, and the calls that it holds."""


@pytest.mark.parametrize("special", [[], sorted({sign for form in FORMATS.values() for sign in form.signs})])
@pytest.mark.parametrize("template", dict.fromkeys(template for template, *_ in WRITTEN))
def test_formats_are_those_of_the_template(tmp_path, monkeypatch, special, template):
    with writing(tmp_path, monkeypatch, template, special=special) as (client, script):
        for text, calls in [case for own, *case in WRITTEN if own == template]:
            script.text = text
            found = reply(client, script, text, trace=True) if special else from_stream(client, tools=TOOLS, max_tokens=800)
            assert calls_of(found) == calls
            assert (found["message"]["content"] or None) == (None if calls else text)
            if "[TOOL_CALLS]" in template and calls:
                assert all(len(call["id"]) == 9 for call in found["message"]["tool_calls"])
        script.text = None
        for choice in ("required", NAMED):
            held = answer(client, chat(tools=TOOLS, tool_choice=choice, max_tokens=400))["choices"][0]
            assert calls_of(held)
            assert held["finish_reason"] == "length" or valid(held)


def test_phi_4_mini_reads_tools_in_its_system_message(tmp_path, monkeypatch):
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("a", "b")]
    results = [{"role": "tool", "tool_call_id": name, "content": name * 2} for name in ("a", "b")]
    history = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    texts = f"<|assistant|><|tool_call|>[{wrapped('a', '{}')}, {wrapped('b', '{}')}]<|/tool_call|><|end|><|tool|>aa<|end|>"
    with writing(tmp_path, monkeypatch, PHI) as (client, script):
        for system in ([], [{"role": "developer", "content": "Be brief."}]):
            said, shown = "Be brief." if system else "You are a helpful assistant with some tools.", '[{"name": "get_time"}]'
            rest = f"<|user|>the fox ran<|end|>{texts}<|tool|>bb<|end|><|assistant|>"
            assert prompt_of(client, script, messages=[*system, *history], tools=[TIME]) == (
                f"<|system|>{said}<|tool|>{shown}<|/tool|><|end|>{rest}"
            )
        assert prompt_of(client, script, messages=history) == rest


BARE = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}"
)


@pytest.mark.parametrize(("sign", "text"), [
    ("<|tool_call|>", '<|tool_call|>[{"name": "a", "arguments": {"b": "c"}}, {"name": "a", "arguments": {"b": "c"}}]'),
    ("<|tool_call_start|>", "<|tool_call_start|>[a(b='c'), a(b='c')]<|tool_call_end|>"),
])  # fmt: skip
def test_a_template_with_tools_but_no_calls_gets_them_as_texts_in_the_format_of_its_tokens(
    tmp_path, monkeypatch, sign, text
):
    """As Granite 3.3's and LFM2's, which show no format: the vocabulary tells it."""
    call = {"id": "x", "type": "function", "function": {"name": "a", "arguments": '{"b": "c"}'}}
    history = [*MESSAGES, {"role": "assistant", "content": "so", "tool_calls": [call, call]}]
    history.append({"role": "tool", "tool_call_id": "x", "content": "sun"})
    with writing(tmp_path, monkeypatch, BARE, special=[sign]) as (client, script):
        shown = '{"type": "function", "function": {"name": "get_time"}}\n'
        wanted = f"user:the fox ran\nassistant:so\n{text}\ntool:sun\n"
        assert prompt_of(client, script, messages=history, tools=[TIME]) == shown + wanted
        assert prompt_of(client, script, messages=history) == wanted


@pytest.mark.parametrize("arguments", ["", '{"b": "c'])
def test_arguments_that_are_no_object_are_written_as_they_came(arguments):
    """As clients send a call without any, or one that was cut."""
    call = {"function": {"name": "a", "arguments": arguments}}
    assert FORMATS["lfm2"].written([call]) == f"<|tool_call_start|>[a({arguments})]<|tool_call_end|>"


@pytest.mark.parametrize("template", [CALLS, NATIVE.replace("tools", "xml_tools") + CALLS])
def test_a_template_with_calls_but_no_tools_gets_a_text_that_says_how(tmp_path, monkeypatch, template):
    """As those of DeepSeek-R1's distilled models, and the first one of SmolLM3, which reads ``xml_tools``."""
    call = {"id": "x", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "x", "content": "sun"}
    history = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}, result]
    with writing(tmp_path, monkeypatch, template) as (client, script):
        prompt = prompt_of(client, script, messages=history, tools=[TIME])
        assert json.dumps(TIME) in prompt
        assert hermes("get_time", "{}") in prompt
        assert "[get_time {}]" in prompt_of(client, script, messages=history)


ONCE = "{% if m['tool_calls'] | length > 1 %}{{ raise_exception('only single tool-calls') }}{% endif %}"
NINE = "{% if call.id|length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ call.id }}"
EACH = "{% for name, value in call.function.arguments|items %}{{ name }}={{ value }}{% endfor %}"


@pytest.mark.parametrize(("refuses", "wanted"), [
    (EACH, "[get_time {}][get_weather {\"arguments\": \"{\\\"a\"}]arguments={\"a<end>"),
    (ONCE, "<s>assistant\n[get_time {}]<end>\n<s>tool\n12 call_6789<end>\n"
     "<s>assistant\n[get_weather \"{\\\"a\"]<end>\n<s>tool\nsun toolu_1<end>\n"),
    (NINE, "<s>assistant\n[get_time {}]call_6789[get_weather \"{\\\"a\"]4838a0c25<end>\n"
     "<s>tool\nsun 4838a0c25<end>\n<s>tool\n12 call_6789<end>\n"),
])  # fmt: skip
def test_calls_of_a_history_are_as_their_template_takes_them(tmp_path, monkeypatch, refuses, wanted):
    """One of a message for Llama 3, ids of nine letters for Mistral 7B and Nemo, and for Qwen3.5 a call
    that was cut as one with an argument."""
    named = {"call_6789": {"name": "get_time", "arguments": "{}"}, "toolu_1": {"name": "get_weather", "arguments": '{"a'}}
    calls = [{"id": id, "type": "function", "function": function} for id, function in named.items()]
    said = {"toolu_1": "sun", "call_6789": "12"}
    results = [{"role": "tool", "tool_call_id": id, "content": text} for id, text in said.items()]
    shown = "{% endfor %}{{ ' ' + m['tool_call_id'] if m['tool_call_id'] }}<end>"
    template = NATIVE + CALLS.replace("{% endfor %}<end>", refuses + shown, 1) + "{# <tool_call> #}"
    with writing(tmp_path, monkeypatch, template) as (client, script):
        history = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
        assert wanted in prompt_of(client, script, messages=history, tools=TOOLS)


def test_every_format_can_be_named():
    assert set(get_args(ToolParser)) == {"auto", *FORMATS}


def test_a_template_whose_calls_nobody_knows_is_refused(tmp_path, monkeypatch):
    for name, template in (("a", NATIVE + CALLS), ("c", OTHER)):
        with writing(tmp_path / name, monkeypatch, template) as (client, _):
            assert "--tool-parser" in refused(client, chat(tools=TOOLS))["message"]
    with writing(tmp_path / "b", monkeypatch, NATIVE + CALLS, tool_parser="hermes") as (client, script):
        assert calls_of(reply(client, script, hermes("get_time", "{}"))) == [("get_time", "{}")]


def test_arguments_in_tags_have_the_types_of_the_schema():
    kinds = {"text": "string", "count": "integer", "flag": "boolean", "list": "array", "maybe": ["string", "null"]}
    schema = {"properties": {**{name: {"type": kind} for name, kind in kinds.items()}, "ref": {"$ref": "#/$defs/a"},
                             "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "any": True}}  # fmt: skip
    for name, text, wanted in (
        ("text", "12", "12"), ("text", '{"a": 1}', '{"a": 1}'), ("text", "\n a\nb \n", "\n a\nb \n"), ("text", "", ""),
        ("count", "12", 12), ("count", "twelve", "twelve"), ("flag", "true", True), ("flag", "False", False),
        ("list", '["a", {"b": null}]', ["a", {"b": None}]), ("maybe", "null", None), ("maybe", "12", "12"),
        ("either", "null", None), ("either", "3", 3),
        ("ref", '{"a": 1}', {"a": 1}), ("ref", "12", "12"), ("any", "[1]", [1]), ("unknown", "12", "12"),
        ("text", "if a < b:\n    print('</b>')", "if a < b:\n    print('</b>')"),
    ):  # fmt: skip
        written = f"\n<parameter={name}>\n{text}\n</parameter>\n"
        assert QWEN.arguments_of(written, schema) == {name: wanted}
        assert QWEN.arguments_of(written + "<parameter=b>", schema) is None
    assert QWEN.arguments_of("\n", schema) == {}


def both(client, path, *, size=800, stop=None, **fields):
    """An answer with tools: whole, and as its stream makes it."""
    body = request(path, size=size, stop=stop, tools=TOOLS) | fields
    whole = answer(client, {**body, "stream": False}, path=path)
    return whole.get("choices", [whole])[0], assembled(events_of(client, path, body))


def arguments_in(path, *calls):
    """Calls as an interface has them: their arguments are a text, or an object."""
    return [(name, json.loads(text) if path in (MESSAGES_ROUTE, OLLAMA) else text) for name, text in calls]


ENDS = {  # by the limit, by a stop text, by itself, with a call
    CHAT: ("length", "stop", "stop", "tool_calls"),
    RESPONSES: ("incomplete", "completed", "completed", "completed"),
    MESSAGES_ROUTE: ("max_tokens", "stop_sequence", "end_turn", "tool_use"),
    OLLAMA: ("length", "stop", "stop", "stop"),
}


@pytest.mark.parametrize("path", ENDS)
@pytest.mark.parametrize("cut", [*range(1, 82, 8), 800, "days", "2}"])
def test_a_call_that_is_cut_is_told_as_far_as_it_is_known_and_never_as_a_whole_one(plain, path, cut):
    """By the limit, or by a stop text; an interface whose arguments are objects has it as content."""
    client, script = plain
    script.text = text = hermes("get_weather", CITY)
    whole, stream = both(client, path, **({"size": cut} if isinstance(cut, int) else {"stop": [cut]}))
    _, content, calls, end = said(whole)
    assert said(stream) == said(whole)
    assert end == ENDS[path][1 if isinstance(cut, str) else 3 if cut == 800 else 0]
    assert (calls and not content) or cut != 800
    if not calls:
        assert text.startswith(content)
        assert content or path in (CHAT, RESPONSES)
    elif path in (MESSAGES_ROUTE, OLLAMA):
        assert calls == arguments_in(path, ("get_weather", CITY))
    else:
        assert [(name, CITY.startswith(written)) for name, written in calls] == [("get_weather", True)]
    for item in whole.get("output", ()):
        assert item["type"] == "message" or item["status"] == ("completed" if item["arguments"] == CITY else "incomplete")


WRITES = {
    "reasoning": "<think>Let me think.</think>", "text": "Hello there",
    "calls": hermes("get_weather", CITY) + hermes("get_time", "{}"),
}  # fmt: skip
KINDS = {
    RESPONSES: {"reasoning": ["reasoning"], "text": ["message"], "calls": ["function_call"] * 2},
    MESSAGES_ROUTE: {"reasoning": ["thinking"], "text": ["text"], "calls": ["tool_use"] * 2},
}


@pytest.mark.parametrize("path", ENDS)
@pytest.mark.parametrize("parts", ["text", "reasoning text", "calls", "reasoning text calls text"])
def test_parts_come_in_their_order_whole_and_in_streams_of_every_interface(thinking, path, parts):
    client, script = thinking["plain"]
    names = parts.split()
    script.text = "".join(WRITES[name] for name in names)
    calls = arguments_in(path, ("get_weather", CITY), ("get_time", "{}")) * ("calls" in names)
    thought, text = "Let me think." * names.count("reasoning"), "Hello there" * names.count("text")
    wanted = Said(thought, text, calls, ENDS[path][3 if calls else 2])
    for found in both(client, path, **({"top_logprobs": 1} if path == RESPONSES else {})):
        assert said(found) == wanted
        if path in KINDS:
            items = found["output" if path == RESPONSES else "content"]
            assert [item["type"] for item in items] == [kind for name in names for kind in KINDS[path][name]]
            assert all(item["content"][0]["logprobs"] for item in items if item["type"] == "message")


@pytest.mark.parametrize("seconds", [9, 0])
def test_a_stream_is_not_silent_while_a_whole_call_is_written(plain, monkeypatch, seconds):
    """``seconds`` are between two pieces."""
    client, script = plain
    script.text = hermes("get_weather", CITY)
    monkeypatch.setattr("draftwood.serve.openai.streams.monotonic", count(0, seconds).__next__)
    tools = [{"name": "get_weather", "input_schema": {"type": "object"}}]
    body = {"messages": MESSAGES, "tools": tools, "max_tokens": 800, "stream": True}
    assert (client.post("/v1/messages", json=body).text.count('"ping"') > 3) is (seconds > 8)


# ---- calls that must come ----


BOTH = {"get_weather", "get_time"}


def valid(choice):
    """The names of the calls, whose arguments validate."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {"maxProperties": 0}) for tool in TOOLS}
    for name, arguments in calls_of(choice):
        jsonschema.validate(json.loads(arguments), schemas[name])
    return [name for name, _ in calls_of(choice)]


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("template", [TEMPLATE, HERMES])
def test_required_calls_validate_and_drafts_change_nothing(tmp_path, monkeypatch, template, temperature):
    with writing(tmp_path, monkeypatch, template) as (client, _):
        for choice, names in (("required", BOTH), (NAMED, {"get_weather"}), (ONE_OF_TWO, {"get_time"})):
            for seed in range(4) if temperature else (0, 3):
                body = {"tools": TOOLS, "tool_choice": choice, "seed": seed, "temperature": temperature, "max_tokens": 600}
                body["parallel_tool_calls"] = choice != NAMED and seed > 2
                found = answer(client, chat(**body))["choices"][0]
                assert said(from_stream(client, **body, speculative=False)) == said(found)
                assert said(from_stream(client, **body)) == said(found)
                if found["finish_reason"] == "length":
                    continue
                assert found["finish_reason"] == "tool_calls"
                assert found["message"]["content"] is None
                assert set(valid(found)) <= names
                if not body["parallel_tool_calls"]:
                    assert len(valid(found)) == 1


def test_the_model_is_shown_the_tools_that_are_allowed(plain):
    may = {"type": "allowed_tools", "allowed_tools": {**ONE_OF_TWO["allowed_tools"], "mode": "auto"}}
    for choice in (ONE_OF_TWO, may):
        assert prompt_of(*plain, tools=TOOLS, tool_choice=choice) == prompt_of(*plain, tools=[TIME])
    assert reply(*plain, "the fox", tool_choice=may)["message"]["content"] == "the fox"
    assert calls_of(reply(*plain, hermes("get_time", "{}"), tool_choice=may)) == [("get_time", "{}")]


def test_an_answer_with_a_form_is_of_this_form_or_a_call(plain):
    client, script = plain
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "b", "schema": schema}}
    script.text, found = None, set()
    for seed in range(12):
        body = {"tools": TOOLS, "response_format": form, "seed": seed, "max_tokens": 600, "logit_bias": {}}
        choice = answer(client, chat(**body))["choices"][0]
        if choice["finish_reason"] == "length":
            continue
        found.add(bool(valid(choice)))
        if not valid(choice):
            assert set(json.loads(choice["message"]["content"])) == {"a"}
    assert found
    assert calls_of(reply(client, script, hermes("get_weather", CITY))) == [("get_weather", CITY)]


# ---- what the model reads ----


def test_a_template_without_tools_gets_a_text_that_says_how(plain):
    text = prompt_of(*plain, tools=TOOLS)
    assert text.startswith("<s>system\n# Tools\n")
    for tool in TOOLS:
        assert f"\n{json.dumps(tool)}\n" in text
    messages = [
        {"role": "system", "content": "the hen"}, *MESSAGES,
        {"role": "assistant", "content": "Wait.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": '{"a": 1}'}},
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "ten"}, {"role": "tool", "tool_call_id": "c2", "content": "two"},
    ]  # fmt: skip
    text = prompt_of(*plain, messages=messages, tools=TOOLS)
    assert text.startswith("<s>system\nthe hen\n\n# Tools\n")
    assert f"<s>assistant\nWait.\n{hermes('get_time', json.dumps({'a': 1}))}<end>" in text
    assert "<s>user\n<tool_response>\nten\n</tool_response>\n<tool_response>\ntwo\n</tool_response><end>" in text
    assert "# Tools" not in prompt_of(*plain, messages=messages)
    first = prompt_of(*plain, messages=[messages[3], *MESSAGES])
    assert first.startswith("<s>user\n<tool_response>\nten\n</tool_response><end>")


def test_a_template_with_tools_gets_them(able):
    client, script = able
    text = prompt_of(
        client, script, tools=[{**TIME, "function": {**TIME["function"], "description": "<end>", "strict": True}}]
    )
    assert '<s>tools\n{"type": "function", "function": {"name": "get_time", "description": "<end>"}}<end>' in text
    ids = client.post("/tokenize", json={"messages": MESSAGES, "tools": TOOLS}).json()["tokens"]
    wanted = script.pair.tokenizer.apply_chat_template(MESSAGES, tools=TOOLS, add_generation_prompt=True, return_dict=False)
    assert ids == wanted
    described = {**TIME, "function": {"name": "get_time", "description": "<end>"}}
    ids = client.post("/tokenize", json={"messages": MESSAGES, "tools": [described]}).json()["tokens"]
    assert ids.count(0) == 3 - 1, "the name of a special token in a description is text"


@pytest.mark.parametrize(("more", "further"), [
    ({}, False), ({"additionalProperties": True}, True), ({"anyOf": [{"required": ["a"]}]}, True),
    ({"required": ["a"], "minProperties": 2}, True),
])  # fmt: skip
def test_arguments_are_those_that_a_function_names(more, further):
    signs = '{"a:1},'
    schema = Function(name="f", parameters={"properties": {"a": {"enum": [1]}}, **more}).form([])
    written = [signs.index(sign) + 1 for sign in '{"a":1']
    grammars = Grammars(letters(tuple(signs)), len(signs) + 1, frozenset([0]))
    mask = grammars.constraint(Grammar.json_schema(compact(schema)), frozenset()).mask(written)
    assert bool(mask[signs.index(",") + 1]) is further


@pytest.mark.parametrize(("fields", "param", "says"), [
    ({"tools": [{**TIME, "function": {"name": "two words"}}]}, "tools.0.function", "tools.0.function.name is 'two words'"),
    ({"tools": [{**TIME, "function": {"name": ""}}]}, "tools.0.function", "pattern"),
    ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools.0.type", "custom"),
    ({"tools": [TIME, TIME]}, "tools", "two functions of the name 'get_time'"),
    ({"tools": [{**TIME, "function": {}}]}, "tools.0.function", "tools.0.function.name is missing"),
    ({"tool_choice": {"type": "function"}}, "tool_choice", "tool_choice.function is missing"),
    ({"tools": {}}, "tools", "list"),
    ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "'f'"),
    ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice", "always"),
    ({"tools": [WEATHER], "tool_choice": ONE_OF_TWO}, "tool_choice", "'get_time'"),
    ({"tools": TOOLS, "tool_choice": {**ONE_OF_TWO, "allowed_tools": {"mode": "auto", "tools": []}}}, "tool_choice",
     "tool_choice.allowed_tools.tools is []"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "any", "tools": [NAMED]}}},
     "tool_choice", "tool_choice.allowed_tools.mode is 'any'"),
    ({"tools": [{**TIME, "function": {"name": "f", "parameters": {"type": "array", "uniqueItems": True}}}],
      "tool_choice": "required"}, "tools", "the parameters of the function 'f'"),
    ({"tools": [{**TIME, "function": {"name": "f", "parameters": {"type": "string"}}}], "tool_choice": "required"}, "tools",
     "the parameters of the function 'f' have the type 'string'"),
    ({"tools": TOOLS, "tool_choice": "required", "regex": "a"}, "regex", "both tool_choice and regex"),
])  # fmt: skip
def test_what_cannot_be_called_is_refused(plain, fields, param, says):
    error = refused(plain[0], chat(**fields))
    assert error["param"] == param
    assert says in error["message"]


LEFT = {"file": ({"type": "string", "format": "path"}, "format"), "price": ({"pattern": r"^(?!x)\d"}, "pattern")}


@pytest.mark.parametrize("name", LEFT)
def test_what_no_grammar_holds_is_left_out_with_a_remark_or_refused_by_name(tmp_path, monkeypatch, name):
    schema, keyword = LEFT[name]
    parameters = {"type": ["object", "null"], "properties": {name: schema, "day": {"enum": [1]}}, "required": ["day"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    must = {"max_tokens": 60, "tools": tools, "tool_choice": "required"}
    where = f"the parameters of the function 'f': properties.{name}.{keyword} is "
    with writing(tmp_path, monkeypatch) as (client, _):
        [remark] = answer(client, chat(**must))["warnings"]
        assert remark.startswith(where)
        [remark] = answer(client, chat(guided_json=json.dumps(parameters)))["warnings"]
        assert remark.startswith(f"guided_json: properties.{name}.{keyword} is ")
        tools.append({**TIME, "function": {"name": "g", "parameters": {"type": "string"}}})
        assert "warnings" not in answer(client, chat(tools=tools)), "a text that is free needs no grammar"
        del tools[1]
    with writing(tmp_path / "strict", monkeypatch, unknown_fields="refuse") as (client, _):
        assert refused(client, chat(**must))["message"].startswith(where)


def test_odd_names_are_called(plain):
    client, script = plain
    script.text = None
    for name in ("a.b", "mcp:files/read", "x" * 128, "-", "9"):
        tools = [{"type": "function", "function": {"name": name}}]
        found = answer(client, chat(tools=tools, tool_choice="required", max_tokens=600, parallel_tool_calls=False))
        assert calls_of(found["choices"][0]) == [(name, "{}")]


def test_a_thousand_functions_are_held_or_refused_in_a_sentence(plain):
    client, script = plain
    script.text = None
    error = refused(client, chat(tools=[{**TIME, "function": {"name": f"f{i}"}} for i in range(1000)]))
    assert error["code"] == "context_length_exceeded"
    many = [{**WEATHER, "function": {**WEATHER["function"], "name": f"f{i}"}} for i in range(1000)]
    functions = {tool["function"]["name"]: Function.model_validate(tool["function"]).form([]) for tool in many}
    with pytest.raises(ApiError, match="the schemas of 1000 functions are too large"):
        grammar_of_calls(FORMATS["hermes"], functions, {}, many=True)
    assert grammar_of_calls(FORMATS["hermes"], dict(islice(functions.items(), 100)), {}, many=True)


def test_a_server_may_have_no_tools(tmp_path, monkeypatch):
    with writing(tmp_path, monkeypatch, no_tools=True) as (client, script):
        error = refused(client, chat(tools=TOOLS))
        assert (error["param"], "--no-tools" in error["message"]) == ("tools", True)
        assert "writes no tool calls" in refused(client, chat(messages=[{"role": "tool", "content": "a"}]))["message"]
        assert reply(client, script, "the fox", tool_choice="none")["message"]["content"] == "the fox"


# ---- reasoning ----


THINKS = HERMES + "{# <think> #}"
OPENS = THINKS + "{% if add_generation_prompt and quiet is not defined %}<think>\n{% endif %}"


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    """Models whose templates know reasoning: left to the model, begun for it, with special tokens, or in channels."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("thinks")
        with (
            writing(folder / "a", patch, THINKS) as plain,
            writing(folder / "b", patch, OPENS, special=["<think>", "</think>"]) as opens,
            writing(folder / "c", patch, THINKS, reasoning_parser="none") as off,
            writing(folder / "e", patch, MISTRAL + "{# [THINK] #}", special=["[THINK]", "[/THINK]"]) as marks,
            writing(folder / "d", patch, HARMONY, special=list(FORMATS["harmony"].signs)) as channels,
        ):
            yield {"plain": plain, "opens": opens, "off": off, "channels": channels, "marks": marks}


@pytest.mark.parametrize(("model", "text", "thought", "content"), [
    ("plain", "<think>\n the hen ran \n</think>\n\n the fox", "the hen ran", "the fox"),
    ("plain", " <think></think>the fox", None, "the fox"),
    ("plain", "<think> the hen", "the hen", ""),
    ("plain", "the fox <think> a hen </think>", None, "the fox <think> a hen </think>"),
    ("plain", "<thin fox", None, "<thin fox"),
    ("opens", "the hen\n</think>\nthe fox", "the hen", "the fox"),
    ("opens", "the hen </thin", "the hen </thin", ""),
    ("off", "<think>the hen</think> the fox", None, "<think>the hen</think> the fox"),
    ("marks", "[THINK]the hen[/THINK]the fox", "the hen", "the fox"),  # as Mistral's
])  # fmt: skip
def test_reasoning_is_split_off(thinking, model, text, thought, content):
    message = reply(*thinking[model], text, tools=None)["message"]
    assert message.get("reasoning_content") == thought
    assert message["content"] == content
    client, script = thinking[model]
    body = chat(max_tokens=800, return_token_ids=True)
    made = answer(client, body)
    ids, decode = made["choices"][0]["token_ids"], script.pair.tokenizer.decode
    ends = [n for n in range(1, len(ids) + 1) if re.search(r"</think>|\[/THINK]", decode(ids[:n]))]
    begins = model == "opens" or text.lstrip().startswith(("<think>", "[THINK]"))
    wanted = {} if model == "off" else {"reasoning_tokens": (ends or [len(ids)])[0] if begins else 0}
    last = streamed(client, body | {"stream_options": {"include_usage": True}})[-1]
    assert [one["usage"].get("completion_tokens_details", {}) for one in (made, last)] == [wanted, wanted]
    used = client.post("/v1/responses", json={"input": "a", "max_output_tokens": 800, "seed": 1}).json()["usage"]
    assert used["output_tokens_details"] == {"reasoning_tokens": wanted.get("reasoning_tokens", 0)}


def test_a_thought_is_closed_at_its_budget_where_the_server_says_so(thinking, tmp_path, monkeypatch):
    marks, body = ["<think>", "</think>"], chat(thinking_token_budget=5, return_token_ids=True, ignore_eos=True)
    with writing(tmp_path, monkeypatch, OPENS, special=marks, thinking_budget="force") as (client, script):
        close = script.pair.tokenizer("\n</think>\n\n", add_special_tokens=False)["input_ids"]
        [found] = answer(client, body)["choices"]
        assert found["token_ids"][5 : 5 + len(close)] == close
        assert found["message"]["reasoning_content"]
        assert found["message"]["content"]
        assert answer(client, body | {"speculative": False})["choices"] == [found]
        [free] = answer(client, body | {"thinking_token_budget": -1})["choices"]
        assert free["token_ids"][:5] == found["token_ids"][:5]
        script.text = "a</think> the fox ran to the hen"  # it ends before
        assert answer(client, body)["choices"][0]["message"]["content"] == "the fox ran to the hen"
    told = answer(thinking["opens"][0], body)
    assert "more than 5 tokens" in told["warnings"][0]
    assert told["choices"] == answer(thinking["opens"][0], body | {"thinking_token_budget": -1})["choices"]
    assert "warnings" not in answer(thinking["off"][0], body)


def test_calls_come_after_reasoning(thinking):
    found = reply(*thinking["opens"], f"<tool_call> it is</think>\n{hermes('get_time', '{}')}")
    assert found["message"]["reasoning_content"] == "<tool_call> it is"
    assert calls_of(found) == [("get_time", "{}")]


CHANNEL = "<|channel|>analysis<|message|>the hen<|end|><|start|>assistant"


@pytest.mark.parametrize(("text", "message"), [
    (CHANNEL + "<|channel|>final<|message|>the fox", {"content": "the fox", "reasoning_content": "the hen"}),
    (CHANNEL + "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + harmony("get_time", "{}"),
     {"content": "I look.", "reasoning_content": "the hen", "tool_calls": [("get_time", "{}")]}),
    (CHANNEL + harmony("get_snow", "{}"), {"content": "{}", "reasoning_content": "the hen"}),
    (CHANNEL + "<|chan", {"content": "", "reasoning_content": "the hen"}),
    (CHANNEL[:40], {"content": "", "reasoning_content": CHANNEL[30:40]}),
    (CHANNEL[:20], {"content": ""}),
    ("the fox ran", {"content": "the fox ran"}),
])  # fmt: skip
def test_thoughts_answers_and_calls_have_channels(thinking, text, message):
    client, script = thinking["channels"]
    found = reply(client, script, text)
    calls = {"tool_calls": calls_of(found)} if calls_of(found) else {}
    got = {name: found["message"][name] for name in ("content", "reasoning_content") if name in found["message"]}
    assert got | calls == message
    assert found["finish_reason"] == ("tool_calls" if calls else "stop")
    used = answer(client, chat(max_tokens=800))["usage"]["completion_tokens_details"]
    thought = text.partition("<|end|>")
    count = len(script.pair.tokenizer(thought[0] + thought[1], add_special_tokens=False)["input_ids"])
    assert used == {"reasoning_tokens": count + (not thought[1]) if "reasoning_content" in message else 0}


def test_channels_are_written_as_their_templates_read_them(tmp_path, monkeypatch):
    call = {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    said = {"role": "assistant", "content": "I look.", "reasoning_content": "the hen", "tool_calls": [call]}
    template = HARMONY.replace("{# <|channel|> {{ m['thinking'] }} #}", "").replace(
        "[{{ call", "<|channel|>{{ m['thinking'] }}[{{ call"
    )
    with writing(tmp_path, monkeypatch, template, special=list(FORMATS["harmony"].signs)) as (client, script):
        other = {**call, "id": "b", "function": {"name": "get_snow", "arguments": "{}"}}
        results = [{"role": "tool", "tool_call_id": id, "content": text} for id, text in (("b", "none"), ("a", "noon"))]
        history = [*MESSAGES, {**said, "tool_calls": [call, other]}, *results]
        assert (  # each call is followed by its result, as such a template writes one call of a message
            "<s>assistant\n<|channel|>the hen\nI look.[get_time {}]<end>\n<s>tool\nnoon<end>\n"
            "<s>assistant\n<|channel|>[get_snow {}]<end>\n<s>tool\nnone<end>\n"
        ) in prompt_of(client, script, messages=history)
        script.text = "the fox"
        messages = [*MESSAGES, {"role": "assistant", "content": "so"}]
        body = chat(messages=messages, continue_final_message=True, thinking_token_budget=5)
        assert answer(client, body)["choices"][0]["message"]["content"] == "the fox"
    with writing(tmp_path / "b", monkeypatch, HARMONY, reasoning_parser="none") as (client, script):
        text = CHANNEL + "<|channel|>final<|message|>the fox"
        assert reply(client, script, text)["message"]["content"] == "the henthe fox"


GEMMA_TURNS = (  # as the first templates of Gemma 4, which read results in the message of their calls
    "{% for m in messages %}{% if m['role'] != 'tool' %}<|turn>{{ m['role'] }}\n"
    "{% for t in (tools or []) if loop.first %}<|tool>declaration:{{ t['function']['name'] }}{}<tool|>{% endfor %}"
    "{% for c in m['tool_calls'] or [] %}<|tool_call>call:{{ c['function']['name'] }}{{ '{' }}"
    "{% for k, v in c['function']['arguments'] | dictsort %}{{ k }}:{{ '<|\"|>' + v + '<|\"|>' if v is string else v }},"
    "{% endfor %}}<tool_call|>{% endfor %}{% for r in m['tool_responses'] or [] %}<|tool_response>response:{{ r['name'] }}"
    "{value:<|\"|>{{ r['response'] }}<|\"|>}<tool_response|>{% endfor %}{{ m['content'] }}<turn|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n<|channel>thought\n{{ '' if hard else '<channel|>' }}{% endif %}"
)


def test_gemma_4_writes_turns_thoughts_and_calls_in_its_own_marks(tmp_path, monkeypatch):
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": CITY}}
    history = [
        {"role": "system", "content": "Be brief."}, *MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": 'sun<|"|>'},
    ]  # fmt: skip
    special = ["<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_response>", *FORMATS["gemma4"].signs]
    with writing(tmp_path, monkeypatch, GEMMA_TURNS, special=special, ends=["<|tool_response>"]) as (client, script):
        assert prompt_of(client, script, messages=history, tools=TOOLS) == (
            "<|turn>system\n<|tool>declaration:get_weather{}<tool|><|tool>declaration:get_time{}<tool|>Be brief.<turn|>\n"
            "<|turn>user\nthe fox ran<turn|>\n<|turn>assistant\n"
            '<|tool_call>call:get_weather{city:<|"|>Bern<|"|>,days:2,}<tool_call|>'
            '<|tool_response>response:get_weather{value:<|"|>sun<|"|><|"|>}<tool_response|><turn|>\n'
            "<|turn>model\n<|channel>thought\n<channel|>"
        )
        calls = '<|tool_call>call:get_time{}<tool_call|><|tool_call>call:get_weather{city:<|"|>Bern<|"|>}<tool_call|>'
        for begin, hard in (("<|channel>thought\n", False), ("", True)):
            text = f"{begin}the hen\n<channel|>It is {calls}<|tool_response>"
            found = reply(client, script, text, chat_template_kwargs={"hard": hard})
            assert calls_of(found) == [("get_time", "{}"), ("get_weather", '{"city": "Bern"}')]
            assert (found["message"]["reasoning_content"], found["message"]["content"]) == ("the hen", "It is")


def test_the_end_of_a_call_may_end_the_text_and_that_of_a_thought_does_not(tmp_path, monkeypatch):
    signs, thought = list(FORMATS["harmony"].signs), HARMONY.replace("<end>\n{% endfor", "<|end|>\n{% endfor")
    with writing(tmp_path, monkeypatch, thought, special=signs, ends=["<|call|>"], thinking_budget="force") as (
        client,
        script,
    ):
        assert reply(client, script, CHANNEL + "<|channel|>final<|message|>the fox")["message"]["content"] == "the fox"
        assert calls_of(reply(client, script, harmony("get_time", "{}") + "<|call|>")) == [("get_time", "{}")]
        for text in (harmony("get_weather", CITY), "<|channel|>final<|message|>the fox ran to the hen"):
            script.text = text
            for budget in range(1, 12):  # nothing thinks, so nothing is closed
                body = chat(tools=TOOLS, max_tokens=800, thinking_token_budget=budget)
                found = answer(client, body)["choices"][0]
                assert calls_of(found) or found["message"]["content"] == "the fox ran to the hen", budget
        message = reply(client, script, CHANNEL[:30] + "a" * 30, thinking_token_budget=2)["message"]
        assert (message["reasoning_content"], set(message["content"])) == ("aa", {"a"})
        script.text = None
        for seed in range(3):
            found = answer(client, chat(tools=TOOLS, tool_choice="required", max_tokens=400, seed=seed))["choices"][0]
            assert calls_of(found)
            assert found["finish_reason"] == "length" or valid(found)


def test_a_grammar_holds_content(thinking):
    client, script = thinking["opens"]
    script.text = None
    message = answer(client, chat(regex="[a-d]{3}"))["choices"][0]["message"]
    assert (len(message["content"]), "reasoning_content" in message) == (3, False)


def test_a_continued_message_goes_on_where_it_is(thinking):
    for begun, thought, content in (
        ("<think>the hen", " ran", "the fox"), ("<think>the hen</think>so", None, " ran</think>the fox"),
    ):  # fmt: skip
        messages = [*MESSAGES, {"role": "assistant", "content": begun}]
        fields = {"messages": messages, "continue_final_message": True, "tools": None}
        message = reply(*thinking["plain"], " ran</think>the fox", **fields)["message"]
        assert (message.get("reasoning_content"), message["content"]) == (thought and thought.strip(), content)


@pytest.mark.parametrize("whole_calls", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_how_a_text_is_cut_makes_no_difference(form, whole_calls):
    texts = [
        f"<think> a </think> b {hermes('f', '{}')} c ",
        '<think>[TOOL_CALLS]</think>x [TOOL_CALLS] [{"name": "f", "arguments": {"a": "]}"}}, {"name": "g"}] y',
        '[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": [1]}  [TOOL_CALLS]g{} [TOOL_CALLS] none',
        ' {"name": "f", "parameters": {"a": {"b": "\\\\"}}} ; {"parameters": {}, "name": "g"} and {',
        '<tool_call>{"name": "f", "arguments": {"a": 1',
        f"<|tool_call|>[{wrapped('f', '{}')}, {wrapped('g', '{}')}]<|/tool_call|> y",
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"b"',
        f"a {SIGNS[0]}{deepseek('f', '{}')}{deepseek('g', '{}')}{SIGNS[4]} b",
        f"{SIGNS[0]}{deepseek('f', '{}', **V3)}\n{deepseek('g', '[]', **V3)}{SIGNS[4]}",
        f"{CHANNEL}<|channel|>commentary<|message|>b<|end|><|start|>assistant{harmony('f', '{}')}<|call|>",
        "a <|tool_call_start|>[f(a='b\\') c', c=[1, 2])]<|tool_call_end|> y",
        f"{CHANNEL}{harmony('f', '{1')}<|start|>assistant{harmony('g', '{}')}<|call|><|start|>assistant{harmony('h', '{}')}",
    ]
    for text in texts:

        def read(cuts):
            reader = AnswerReader(Reading(thinks=False, form=FORMATS[form], schemas={"f": {}, "g": {}}, whole=whole_calls))
            deltas = [delta for cut in cuts for delta in reader.push(cut)] + reader.push("", last=True)
            found = reader.message()
            calls = [call["function"] for call in found.get("tool_calls", ())]
            parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
            for name in ("content", "reasoning_content"):
                assert "".join(delta.get(name, "") for delta in deltas) == (found.get(name) or "")
            for index, call in enumerate(calls):
                written = (part["function"]["arguments"] for part in parts if part["index"] == index)
                assert "".join(written) == call["arguments"]
            return {**found, "tool_calls": calls}

        whole = read([text])
        for size in range(1, 9):
            assert read(in_pieces(text, size)) == whole


class Counted:
    """A regular expression that counts the characters it is given."""

    def __init__(self, pattern, seen):
        self.pattern, self.seen = pattern, seen

    def __getattr__(self, name):
        def look(text, at=0, end=sys.maxsize, **more):
            self.seen[0] += max(0, min(end, len(text)) - at)
            return getattr(self.pattern, name)(text, at, end, **more)

        return look


def in_pieces(text, size):
    return [text[at : at + size] for at in range(0, len(text), size)]


def looked_at(monkeypatch, form, parts, *, whole=False, held=64):
    """How many characters of a text in pieces are looked at, and what is read of it; ``held`` ones wait for a call."""
    seen, read, given = [0], Nesting.read, FORMATS[form]

    def counted(nesting, text, at=0):
        seen[0] += len(text) - at
        return read(nesting, text, at)

    with monkeypatch.context() as patch:
        patch.setattr(Nesting, "read", counted)
        for name in ("_OBJECT", "_SHOWN"):
            patch.setattr(reading, name, Counted(getattr(reading, name), seen))
        for name in ("reading", "tagged"):
            patch.setattr(f"draftwood.serve.openai.{name}.HELD", held)
        given = replace(given, head=Counted(given.head, seen))
        reader = AnswerReader(Reading(form=given, schemas={"f": {}}, whole=whole))
        for part in parts:
            reader.push(part)
            waits = reader._reader._input
            seen[0] += 0 if waits.pieces else len(waits.text) - waits.place  # it may be looked at for blanks and marks
        reader.push("", last=True)
    return seen[0], reader.message()


@pytest.mark.parametrize("whole_calls", [False, True])
@pytest.mark.parametrize(("form", "around"), [
    ("hermes", ('<tool_call>{"name": "f", "arguments": ', "}</tool_call>")),
    ("hermes", ('<tool_call>{"arguments": ', ', "name": "f"}</tool_call>')),
    ("lfm2", ("<|tool_call_start|>[f(b='b) c', c=", ")]<|tool_call_end|>")),
])  # fmt: skip
def test_long_arguments_are_read_once(monkeypatch, form, around, whole_calls):
    """A server reads every piece between two rounds of all its texts."""
    written = json.dumps(arguments := {"a": "b " * 4000, "c": ["d)"] * 1000})
    text = written.join(around)
    seen, message = looked_at(monkeypatch, form, in_pieces(text, 4), whole=whole_calls)
    wanted = {"b": "b) c", "c": arguments} if form == "lfm2" else arguments
    assert message["tool_calls"][0]["function"]["arguments"] == json.dumps(wanted)
    assert len(written) < seen < 4 * len(text)


HOPES = [
    " ",
    "a",
    '{"',
    '{"a": "',
    '{\\"',
    "<",
    '{"name": "',
    "[f('",
    "<function=f><parameter=a>",
    "f<arg_key>",
    'call:f{<|"|>',
]
PATIENCE = 120
"""How often each character is looked at, at most, where 64 wait for a call and come in pieces of three."""


@pytest.mark.parametrize("form", sorted(FORMATS.keys() - {"harmony"}))
def test_hopes_of_a_call_are_given_up(monkeypatch, form):
    """Texts that may be the beginning of a call again and again, or for ever."""
    mark = FORMATS[form].mark
    for hope in HOPES:
        for unit, begin in ((hope, mark), (mark + hope, "")):
            text = begin + unit * (1500 // len(unit))
            assert looked_at(monkeypatch, form, in_pieces(text, 3))[0] < PATIENCE * len(text)


def test_control_a_reader_that_hopes_for_ever_is_seen(monkeypatch):
    text = "<tool_call>" + " " * 1500
    assert looked_at(monkeypatch, "hermes", in_pieces(text, 3), held=len(text))[0] > PATIENCE * len(text)
