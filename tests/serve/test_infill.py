"""Texts for a gap: the prompt of prefix and suffix, its ends, and what is refused."""

import pytest

from draftwood.core.settings import Method
from draftwood.loading.infill import NAMES, Infill
from tests.serve.client import COMPLETIONS, answer, chat, choice, completion, refused, text_of
from tests.serve.conftest import loaded, make_service, serving
from tests.tiny_chat import adding, chat_tokenizer, save_chat

QWEN = NAMES[0]
ENDS = ["<|fim_pad|>", "<|file_sep|>"]
BEFORE, AFTER = "the fox ran", " up the hill"


@pytest.fixture(scope="module", params=["no first token", "a first token"])
def client(request, tmp_path_factory):
    """A client of a server whose tokenizer has the tokens of a gap."""
    tokenizer = chat_tokenizer() if request.param == "no first token" else adding()
    tokenizer.add_tokens([*QWEN, *ENDS], special_tokens=True)
    folder = save_chat(tmp_path_factory.mktemp("infill"), tokenizer=tokenizer)
    pair = loaded([folder])
    with serving(make_service(pair, method=Method(method="lookup"))) as found:
        found.tokenizer = pair.tokenizer
        yield found


def gap(client, before=BEFORE, after=AFTER):
    """The prompt, token by token, as the models' authors write it."""
    text = f"{QWEN[0]}{before}{QWEN[1]}{after}{QWEN[2]}"
    return list(client.tokenizer(text)["input_ids"])


@pytest.mark.parametrize("before", [BEFORE, ""])
@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 1, "n": 3}, {"temperature": 1, "stop": ["e"]}])
def test_a_gap_is_written_as_after_its_prompt(client, before, settings):
    ids = gap(client, before)
    written = answer(client, completion(prompt=before, suffix=AFTER, **settings))
    ends = [client.tokenizer.get_vocab()[end] for end in ENDS]
    after = answer(client, completion(prompt=ids, stop_token_ids=ends, **settings))
    assert [one["text"] for one in written["choices"]] == [one["text"] for one in after["choices"]]
    assert written["usage"]["prompt_tokens"] == len(ids)
    plain = answer(client, completion(prompt=before or AFTER, **settings))
    assert [one["text"] for one in plain["choices"]] != [one["text"] for one in written["choices"]]  # control


def test_a_gap_ends_at_the_tokens_between_files_unless_no_end_is_wanted(client):
    end = client.tokenizer.get_vocab()[ENDS[0]]
    body = completion(suffix=AFTER, logit_bias={str(end): 100}, max_tokens=4, return_token_ids=True)
    assert choice(client, body)["finish_reason"] == "stop"
    for more in ({"ignore_eos": True}, {"suffix": ""}):
        assert choice(client, {**body, **more})["finish_reason"] == "length"


def test_ollama_writes_a_gap_too(client):
    body = {"model": "tiny", "prompt": BEFORE, "suffix": AFTER, "stream": False, "options": {"seed": 1, "num_predict": 16}}
    found = answer(client, body, path="/api/generate")["response"]
    assert found == text_of(choice(client, completion(prompt=gap(client), seed=1, max_tokens=16)))
    assert "system" in str(client.post("/api/generate", json={**body, "system": "Be brief."}).json()["error"])


def test_what_has_no_gap_is_refused(client, pair):
    assert "echo and suffix" in refused(client, completion(suffix=AFTER, echo=True))["message"]
    assert COMPLETIONS in refused(client, chat(suffix=AFTER))["message"]
    assert "too long" in refused(client, completion(suffix="the fox " * 9000))["message"]
    assert text_of(choice(client, chat(suffix="")))
    with serving(make_service(pair)) as other:
        assert "has no tokens for a gap" in refused(other, completion(suffix=AFTER))["message"]


@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_tokens_of_a_gap_are_found_by_name_or_said_by_a_file(names):
    tokenizer = chat_tokenizer()
    tokenizer.add_tokens([*names[:2]], special_tokens=True)
    assert Infill.of(tokenizer) is None
    tokenizer.add_tokens([names[2]], special_tokens=True)
    found, vocab = Infill.of(tokenizer), tokenizer.get_vocab()
    assert found is not None
    assert (found.prefix, found.suffix, found.middle) == tuple(vocab[name] for name in names)
    tokenizer.infill_tokens = ("<s>", "<end>", names[0])
    assert Infill.of(tokenizer) == Infill(vocab["<s>"], vocab["<end>"], vocab[names[0]])
