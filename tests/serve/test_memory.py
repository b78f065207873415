"""Texts begin while their keys and values fit, an idle server gives them back, and a second turn reads what is new only."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from time import sleep

import pytest
import torch

import draftwood
from draftwood import LoadOptions, Method
from draftwood.core.errors import ConfigError
from draftwood.engine.prompts import AGAIN
from draftwood.native.library import LIBRARY
from draftwood.serve.decoding import rows as rows_module
from draftwood.serve.decoding import scheduler
from draftwood.serve.decoding.rows import Admission
from tests.helpers import hidden_pair, published_pair, tiny_gpt
from tests.native.test_mtp import checkpoint, random_head
from tests.native.test_states import random_model
from tests.serve.client import answer, chat, choice, completion, metric, refused, streamed, text_of, written
from tests.serve.conftest import loaded, make_service, serving, until
from tests.tiny_chat import chat_tokenizer, save_chat


def room(pair, tokens):
    """GiB for the keys and values of so many tokens."""
    return (tokens + 0.5) * Admission(pair, 1, 1.0).token / 2**30


def watch(service, see):
    """Calls a function after every round, and holds that the memory suffices."""
    rows = service.scheduler._rows
    step = rows.step

    def watched():
        step()
        see()
        assert rows.memory <= 1

    rows.step = watched
    return rows


def test_bytes_of_a_token_are_those_of_the_memory_that_the_models_keep(folders):
    from transformers import DynamicCache

    served, kept = loaded(folders, "torch"), 0
    for runner in (served.target, served.draft):
        assert runner is not None
        memory = DynamicCache()
        ids = served.target.another().model.dummy_inputs["input_ids"][:1, :4]
        runner.model(ids % 200, past_key_values=memory)
        kept += sum(layer.keys.nbytes + layer.values.nbytes for layer in memory.layers) // ids.shape[1]
    assert Admission(served, 1, 1.0).token == kept > 0


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "own"])
def test_the_memory_of_drafters_of_hidden_states_counts_too(kind):
    model = tiny_gpt(12, 1, dtype=torch.float32)
    draft = (hidden_pair(model) if kind == "own" else published_pair(model, kind))[1]
    config = draft.model.config
    wanted = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    assert draft.token_bytes == wanted > 0


def test_a_text_is_cut_to_the_memory_that_there_is(served):
    prompt = len(served.encode("the fox ran"))
    with serving(make_service(served, max_memory=room(served, prompt + 16))) as client:
        found = answer(client, completion(max_tokens=17, ignore_eos=True))
        assert (found["usage"]["completion_tokens"], found["choices"][0]["finish_reason"]) == (16, "length")
        error = refused(client, completion(prompt=[5] * (prompt + 16)))
    assert f"{prompt + 16} tokens > {prompt + 15} maximum" in error["message"]


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_texts_without_a_limit_share_the_memory_and_are_the_same(folders, monkeypatch, backend):
    """Each could fill it alone. They begin together, the last pauses when they outgrow it, and no end changes."""
    pair = loaded(folders, backend)
    monkeypatch.setattr(rows_module, "_JOINS", 16)
    monkeypatch.setattr(rows_module, "_WRITES", 8)
    body = chat(n=4, max_tokens=None, ignore_eos=True)
    with serving(make_service(pair, max_length=128)) as client:
        assert 0 <= metric(client, "kv_cache_usage_perc") < 1
        free = answer(client, body)
    service, seen = make_service(pair, max_memory=room(pair, 128)), list[int]()
    rows = watch(service, lambda: seen.append(rows.running))
    with serving(service) as client:
        found = answer(client, body)
        assert metric(client, "num_preemptions_total") > 0
        assert metric(client, "kv_cache_usage_perc") == 0
    assert found["choices"] == free["choices"]
    assert found["usage"]["completion_tokens"] == 4 * (128 - found["usage"]["prompt_tokens"])
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] <= found["usage"]["prompt_tokens"]
    assert (max(seen), seen[-1] <= 1) == (3, True)


def test_texts_that_wait_for_memory_end_with_the_server(served):
    service = make_service(served, max_memory=room(served, 420))
    with serving(service) as client:
        rows = service.scheduler._rows
        step = rows.step

        def cut():
            step()
            rows.step = step
            service.scheduler.cut()

        rows.step = cut
        found = answer(client, completion(n=3, max_tokens=400, ignore_eos=True))
    assert [choice["finish_reason"] for choice in found["choices"]] == ["length"] * 3
    assert sum(bool(choice["text"]) for choice in found["choices"]) <= 1


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """A target with running states, and its MTP head."""
    model = random_model("qwen3_5_text", vocab_size=len(chat_tokenizer()), max_position_embeddings=1024)
    folder = checkpoint(tmp_path_factory.mktemp("hybrid"), model, random_head(model.config))
    chat_tokenizer().save_pretrained(folder)
    return draftwood.load(folder, options=LoadOptions(backend="native", profile="none"))


def test_running_states_count_and_texts_wait_for_them(hybrid):
    body, count = completion(n=32, ignore_eos=True), 5
    with serving(make_service(hybrid, max_rows=32)) as client:
        free = answer(client, body)["choices"]
    need = Admission(hybrid, 1, 1.0)
    assert need.states > 64 * need.token, "most of a short text"
    length = len(hybrid.encode("the fox ran")) + 16
    gibibytes = count * (need.states + (length + 0.5) * need.token) / 2**30
    service, seen = make_service(hybrid, max_rows=32, max_memory=gibibytes, no_prefix_cache=True), list[tuple[int, int]]()
    rows = watch(service, lambda: seen.append((rows.running, hybrid.target.memory_bytes)))
    with serving(service) as client:
        assert answer(client, body)["choices"] == free
    pages = 64 * hybrid.target.token_bytes  # which a short text takes whole
    assert max(running for running, _ in seen) == count
    assert 0 < max(taken for _, taken in seen) <= gibibytes * 2**30 + count * pages
    assert hybrid.target.memory_bytes == 0


def test_the_next_turn_of_a_chat_copies_all_but_a_few_tokens_of_running_states(hybrid):
    prompt = [5 + 7 * i % 60 for i in range(200)]
    with serving(make_service(hybrid)) as client:
        for known, given in ((0, prompt), (len(prompt) - 4, [*prompt[:-4], *range(9, 50)])):
            usage = answer(client, completion(prompt=given, max_tokens=20, ignore_eos=True))["usage"]
            assert 0 <= known - usage["prompt_tokens_details"]["cached_tokens"] <= AGAIN


ROOT = Path(__file__).parents[2]
FREE = 32 << 20  # bytes of free pages that the native engine keeps


def test_memory_is_released_once_after_the_last_text(served, monkeypatch):
    releases = []
    service = make_service(served)
    monkeypatch.setattr(scheduler, "release_free_memory", lambda: releases.append(service.scheduler.texts))
    monkeypatch.setattr(scheduler, "IDLE_SECONDS", 0.05)
    with serving(service) as client:
        until(lambda: len(releases) == 1)
        assert written(client, max_tokens=64)
        until(lambda: len(releases) == 2)
        sleep(0.2)
        assert releases == [0, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_the_memory_of_a_long_prompt_goes_back(tmp_path, backend):
    if backend == "native" and not LIBRARY.exists():
        pytest.skip("the native engine is not compiled")
    folder = save_chat(
        tmp_path, hidden_size=64, layers=16, num_attention_heads=16, num_key_value_heads=16, head_dim=128,
        max_position_embeddings=1024,
    )  # fmt: skip
    code = f"from tests.serve.test_memory import long_prompts; print(*long_prompts({str(folder)!r}, {backend!r}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted, most, left = map(int, run.stdout.split())
    assert wanted > 64 << 20
    assert most > 0.9 * wanted  # control: the keys and values were there
    assert left < 0.2 * most + FREE * (backend == "native")


def long_prompts(folder, backend):
    """Bytes of a long prompt's keys and values, what its text takes at most, and what an idle server keeps of that."""
    pair = draftwood.load(folder, options=LoadOptions(dtype="float32", device="cpu", backend=backend, profile="none"))
    service = make_service(pair, method=Method(method="ar"), no_prefix_cache=True)
    seen = list[int]()
    watch(service, lambda: seen.append(resident()))
    pytest.MonkeyPatch().setattr(scheduler, "IDLE_SECONDS", 0.2)  # in a process of its own
    with serving(service) as client:
        for prompt in ([270], [270] * 640):  # the first text takes what stays
            before = resident()
            seen.clear()
            written(client, prompt=prompt, max_tokens=4, ignore_eos=True)
            sleep(2 * scheduler.IDLE_SECONDS)
        return 640 * pair.target.token_bytes, max(seen) - before, resident() - before


@pytest.mark.skipif(sys.platform != "linux" or not LIBRARY.exists(), reason="reads the resident memory of the native engine")
def test_texts_take_what_they_are_counted_for(tmp_path):
    sizes = {"hidden_size": 48, "layers": 30, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 64}
    folder = save_chat(tmp_path, max_position_embeddings=1024, **sizes)
    code = f"from tests.serve.test_memory import many_prompts; print(*many_prompts({str(folder)!r}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    counted, grown = map(int, run.stdout.split())
    assert counted > 100 << 20, "control: the budget was used"
    assert grown < 1.15 * counted


def many_prompts(folder):
    """Bytes that the texts of a full prefix cache count for, and by which the server has grown."""
    pair = draftwood.load(folder, options=LoadOptions(dtype="bfloat16", device="cpu", backend="native", profile="none"))
    service = make_service(pair, method=Method(method="ar"), max_memory=1 / 8)
    with serving(service) as client:
        for i in range(40):
            written(client, prompt=[2 + i, *[270] * 300], max_tokens=2, ignore_eos=True)
            if i == 0:
                before = resident() - pair.target.memory_bytes
        return pair.target.memory_bytes, resident() - before


def resident():
    """Bytes of the resident memory of this process."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


# ---- the prefix cache ----

PROMPT = "the fox ran over the hill and the dog ran after the fox " * 3


@pytest.fixture(scope="module", params=["native", "torch"])
def engine(request, folders):
    return loaded(folders, request.param)


@pytest.fixture
def own(engine):
    """A pair that keeps nothing yet."""
    engine.prefixes.clear()
    return engine


def cached(found):
    return int(found["usage"]["prompt_tokens_details"]["cached_tokens"])


def turns(client):
    """The answers of a chat of two turns."""
    said = [{"role": "user", "content": PROMPT}]
    first = answer(client, chat(messages=said))
    text = first["choices"][0]["message"]["content"]
    said += [{"role": "assistant", "content": text}, {"role": "user", "content": "and then"}]
    return [first, answer(client, chat(messages=said, seed=2))]


def test_the_second_turn_of_a_chat_reads_what_is_new(own):
    with serving(make_service(own)) as client:
        first, second = turns(client)
        assert cached(first) == 0
        assert 0.5 * second["usage"]["prompt_tokens"] < cached(second) < second["usage"]["prompt_tokens"]
        assert metric(client, "prefix_cache_hits_total") == cached(second)
        assert metric(client, "prefix_cache_hit_requests_total") == 1
        usage = {"include_usage": True}
        last = [streamed(client, completion(prompt=PROMPT, n=2, stream_options=usage))[-1] for _ in range(2)]
        assert cached(last[0]) == 0, "one of the two choices has read it"
        assert cached(last[1]) == last[1]["usage"]["prompt_tokens"] - 2
        assert cached(answer(client, completion(prompt=[PROMPT, PROMPT], n=2))) == 2 * cached(last[1])
    own.prefixes.clear()
    with serving(make_service(own, no_prefix_cache=True)) as client:
        read = turns(client)
        assert [text_of(*one["choices"]) for one in read] == [text_of(*one["choices"]) for one in (first, second)]
        assert [cached(one) for one in read] == [0, 0]
        assert metric(client, "prefix_cache_hits_total") == 0
    assert len(own.prefixes) == 0


@pytest.mark.parametrize("share", [False, True])
def test_keys_share_beginnings_only_on_request(own, share):
    with serving(make_service(own, share_prefixes=share), keys=("one", "two")) as client:
        for key, hit in (("one", False), ("two", share), ("one", True)):
            client.headers["Authorization"] = f"Bearer {key}"
            assert (cached(answer(client, completion(prompt=PROMPT))) > 0) == hit


@pytest.mark.parametrize(("history", "hits"), [
    ("none", [False, False, False]),
    ("key", [False, False, True]),
    ("all", [False, True, True]),
])  # fmt: skip
def test_speed_tells_of_earlier_texts_of_ones_own_key_and_of_others_only_on_request(own, history, hits):
    """At temperature 2 a text seldom repeats itself, so nearly all that is accepted stands in an earlier one."""
    body = completion(prompt=PROMPT, temperature=2.0, max_tokens=40, ignore_eos=True)
    with serving(make_service(own, method=Method(method="ngram"), history=history), keys=("one", "two")) as client:
        accepted, texts = [0.0], set()
        for key in ("one", "two", "two"):
            client.headers["Authorization"] = f"Bearer {key}"
            texts.add(text_of(choice(client, body)))
            accepted.append(metric(client, "spec_decode_num_accepted_tokens_total"))
        assert [after - before > 20 for before, after in pairwise(accepted)] == hits
        assert len(texts) == 1


def test_a_history_of_no_texts_is_refused(own):
    with pytest.raises(ConfigError, match=r"--history keeps texts .* --no-prefix-cache keeps none: leave one of them out"):
        make_service(own, history="key", no_prefix_cache=True)


def test_texts_that_are_kept_make_room_for_those_that_are_written(own):
    kept, tokens = own.prefixes, len(own.encode(PROMPT))
    with serving(make_service(own)) as client:
        assert answer(client, completion(prompt=PROMPT))
        assert len(kept) == 1
    used = sum(runner.memory_bytes for runner in (own.target, own.draft))
    with serving(make_service(own, max_memory=5 * used / 2**30)) as client:
        for start in "abcdefgh":
            assert answer(client, completion(prompt=f"{start} {PROMPT}"))
        assert 1 <= len(kept) < 8
        assert metric(client, "kv_cache_usage_perc") == 0
        long = completion(prompt=PROMPT, n=3, max_tokens=tokens // 2, ignore_eos=True)
        assert [choice["finish_reason"] for choice in answer(client, long)["choices"]] == ["length"] * 3
