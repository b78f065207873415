"""A server with a cache folder that is started anew reads only what is new of a chat, and writes the same text."""

import logging

import httpx2 as httpx
import pytest

from draftwood.core.errors import ConfigError
from draftwood.native.library import LIBRARY
from draftwood.serve.http.settings import ServeOptions
from tests.serve.client import MESSAGES, answer, chat, value_of
from tests.serve.conftest import loaded, make_service, process, serving

TOLD = {"role": "user", "content": "the fox ran over the hill and the dog ran after the fox " * 3}


@pytest.mark.skipif(not LIBRARY.exists(), reason="the native engine is not compiled")
def test_a_server_that_is_started_anew_reads_only_what_is_new(folders, tmp_path):
    texts, cached, said = list[str](), list[int](), [TOLD]
    for number in range(2):
        options = ["--draft", str(folders[1]), "--backend", "native", "--profile", "none", "--cache-dir", str(tmp_path)]
        with process(folders[0], *options) as (_, url, _), httpx.Client(base_url=url, timeout=60) as client:
            found = client.post("/v1/chat/completions", json=chat(messages=said)).raise_for_status().json()
            texts.append(found["choices"][0]["message"]["content"])
            cached.append(found["usage"]["prompt_tokens_details"]["cached_tokens"])
            metrics = client.get("/metrics").text
            assert value_of(metrics, "prefix_cache_hits_total") == cached[-1]
            assert (value_of(metrics, "prefix_cache_restored_total") > 0) == (number == 1)
        if number == 0:
            length = found["usage"]["prompt_tokens"]
            said = [*said, {"role": "assistant", "content": texts[0]}, *MESSAGES]
    with serving(make_service(loaded(folders))) as client:  # without the folder
        assert answer(client, chat(messages=said))["choices"][0]["message"]["content"] == texts[1]
    assert cached[0] == 0
    assert length - 2 <= cached[1] < found["usage"]["prompt_tokens"]


def test_a_folder_is_for_the_native_engine_and_can_be_made(folders, tmp_path, caplog):
    other = loaded(folders, "torch")
    with caplog.at_level(logging.WARNING):
        make_service(other, cache_dir=tmp_path)
    assert "--cache-dir keeps nothing: keys and values of torch are not written to files" in caplog.text
    assert other.prefixes.folder is None
    for given, says in (({"no_prefix_cache": True}, "exclude each other"), ({"cache_size": 0.0}, "cache_size is 0.0")):
        with pytest.raises(ConfigError, match=says):
            ServeOptions(cache_dir=tmp_path, **given)
