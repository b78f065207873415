"""The same seed gives the same text: alone, in any company, streaming or not, with and without drafts."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from draftwood import Method
from tests.serve.client import chat, choice, completion, parts_of, text_of
from tests.serve.conftest import live_server, loaded, make_service, serving

PROMPTS = ["the fox ran", "a dog", "the hen sat on the red hill and", "a"]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"temperature": 0.9, "logit_bias": {"260": 1.5}, "min_tokens": 4},
]


def wanted(seed: int) -> dict[str, Any]:
    """A request, by its number."""
    rng = random.Random(seed)
    prompt, settings = rng.choice(PROMPTS), rng.choice(SETTINGS)
    return completion(prompt=prompt, seed=seed, max_tokens=rng.randrange(3, 14), **settings)


def test_a_text_is_the_one_it_is_alone_while_others_come_and_go(folders: tuple[Path, Path]) -> None:
    bodies = [wanted(seed) for seed in range(40)]
    with serving(make_service(loaded(folders), method=Method(method="ar"))) as client:
        alone = [text_of(choice(client, body)) for body in bodies]
    assert len(set(alone)) > 30  # control: the texts differ
    with (
        live_server(make_service(loaded(folders), max_rows=4)) as live,
        httpx2.Client(base_url=live.url, timeout=60) as client,
    ):

        def text(number: int) -> str:
            rng = random.Random(number)
            stream, drafts = rng.random() < 0.5, rng.random() < 0.7
            parts = parts_of(client, {**bodies[number], "speculative": drafts}, stream=stream)
            return text_of(*(part["choices"][0] for part in parts))

        with ThreadPoolExecutor(8) as threads:
            together = list(threads.map(text, range(len(bodies))))
    assert together == alone


@pytest.mark.parametrize("method", [Method(method="lookup"), Method(method="rsd-s", shape="2x2"), Method(method="chain")])
def test_every_method_serves_greedy_texts_as_plain_decoding_does(folders: tuple[Path, Path], method: Method) -> None:
    with serving(make_service(loaded(folders), method=method)) as client:
        body = chat(temperature=0, max_tokens=12)
        texts = {text_of(choice(client, {**body, "speculative": drafts})) for drafts in (True, False)}
    assert len(texts) == 1
