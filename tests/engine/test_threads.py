"""Several threads and tasks share one pair: calls wait for one another, and nothing waits for itself."""

import asyncio
from threading import Event, Thread

import pytest
import torch

from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.engine import in_use
from tests.engine.test_decode import VOCAB
from tests.helpers import Words, tiny_gpt

PROMPTS = ["hello", "world", "what", "now"]
LENGTH = 16


@pytest.fixture
def pair():
    return Pair(tiny_gpt(VOCAB, 1), tiny_gpt(VOCAB, 2, layers=1), Words())


def texts(pair):
    return [pair.generate(prompt, seed=i, max_new_tokens=LENGTH).text for i, prompt in enumerate(PROMPTS)]


async def read(pair, number, **settings):
    text = ""
    async for piece in pair.astream(PROMPTS[number], seed=number, max_new_tokens=LENGTH, **settings):
        text += piece.text
    return text


def test_threads_wait_for_one_another_and_get_the_texts_that_they_have_alone(pair):
    wanted, found = texts(pair), {}
    stream = pair.stream(PROMPTS[0], seed=0, max_new_tokens=LENGTH)
    first = next(stream).text  # the others wait for the rest of it

    def write(number):
        found[number] = pair.generate(PROMPTS[number], seed=number, max_new_tokens=LENGTH).text

    threads = [Thread(target=write, args=(number,)) for number in range(1, len(PROMPTS))]
    for thread in threads:
        thread.start()
    found[0] = first + "".join(piece.text for piece in stream)
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(len(PROMPTS))] == wanted


def test_a_stream_that_a_thread_leaves_unfinished_is_named_when_the_thread_has_ended(pair, monkeypatch):
    monkeypatch.setattr(in_use, "_LOOK", 0.01)
    kept, begun, leave = [], Event(), Event()

    def begin():
        kept.append(pair.stream(PROMPTS[0], seed=0))
        next(kept[0])
        begun.set()
        leave.wait()

    thread = Thread(target=begin)
    thread.start()
    begun.wait()
    leave.set()
    with pytest.raises(ConfigError, match="a thread that has ended left a stream of these models unfinished"):
        pair.generate(PROMPTS[1], seed=1)
    kept[0].close()
    assert pair.generate(PROMPTS[1], seed=1, max_new_tokens=LENGTH).text


def test_tasks_share_a_pair(pair):
    wanted = texts(pair)

    async def all_of_them():
        return await asyncio.gather(*(read(pair, number) for number in range(len(PROMPTS))))

    assert asyncio.run(all_of_them()) == wanted


def test_the_event_loop_goes_on_while_a_round_runs(pair, monkeypatch):
    extend, inside, released = pair.target.extend, Event(), Event()

    def slow(*given):
        inside.set()
        assert released.wait(60)
        return extend(*given)

    monkeypatch.setattr(pair.target, "extend", slow)

    async def main():
        task = asyncio.create_task(read(pair, 0, method="ar"))
        while not inside.is_set():
            await asyncio.sleep(0.01)
        released.set()  # the round ends only because this ran
        return await task

    assert asyncio.run(main())


@pytest.mark.parametrize("how", ["break", "cancel"])
def test_a_loop_that_ends_early_frees_the_models(pair, how):
    wanted = texts(pair)

    async def begin(begun):
        async for _ in pair.astream(PROMPTS[0], seed=0, max_new_tokens=LENGTH, method="ar"):
            begun.set()
            if how == "break":
                break

    async def main():
        begun = asyncio.Event()
        task = asyncio.create_task(begin(begun))
        await begun.wait()
        if how == "cancel":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task
        return await read(pair, 1)

    assert asyncio.run(main()) == wanted[1]
    assert texts(pair) == wanted


def test_what_would_wait_for_itself_is_refused(pair, monkeypatch):
    monkeypatch.setattr(in_use, "_GRACE", 0.05)
    monkeypatch.setattr(in_use, "_LOOK", 0.01)

    async def nested(call):
        async for _ in pair.astream(PROMPTS[0], seed=0, max_new_tokens=LENGTH):
            with pytest.raises(ConfigError, match="generating already"):
                await call()
            return

    async def blocking():
        pair.generate(PROMPTS[1], seed=1)

    async def another():
        await read(pair, 1)

    for call in (blocking, another):
        asyncio.run(nested(call))
    assert pair.generate(PROMPTS[1], seed=1, max_new_tokens=LENGTH).text


def test_errors_reach_the_task(pair, monkeypatch):
    with pytest.raises(ConfigError, match="temperature"):
        pair.astream(PROMPTS[0], temperature=-1)
    monkeypatch.setattr(pair.target, "extend", lambda *given: torch.zeros(1) / "x")
    with pytest.raises(TypeError):
        asyncio.run(read(pair, 0))
    monkeypatch.undo()
    assert asyncio.run(read(pair, 0)) == texts(pair)[0]
