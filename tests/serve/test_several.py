"""Several models behind one address: they are loaded by name, answer each on its own, and go when time or memory says so."""

import gc
import json
import socket
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree
from time import monotonic, sleep

import httpx2 as httpx
import openai
import pytest
import torch
from click.testing import CliRunner

import draftwood
from draftwood import LoadOptions
from draftwood.cli import main
from draftwood.core.errors import ConfigError
from draftwood.serve import document
from draftwood.serve import registry as registry_module
from draftwood.serve.dialects.ollama import Ollama
from draftwood.serve.http.settings import ServeOptions, Targets
from draftwood.serve.registry import Registry
from tests.browser import serious
from tests.loading.gguf_files import source, write_gguf
from tests.serve import conftest
from tests.serve.client import MESSAGES, answer, choice, chunks, completion, raw, text_of, value_of
from tests.serve.conftest import DRAWS, ENDED, METHOD, PAGE, on_port, until, write
from tests.serve.interfaces import error_of
from tests.tiny_chat import save_chat

LOADING = LoadOptions(dtype="float32", device="cpu", backend="native", profile="none")
NAMES = ("first", "second", "third")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder of models, with a draft model of them elsewhere."""
    folder = tmp_path_factory.mktemp("several")
    for seed, name in enumerate(NAMES):
        save_chat(folder / "models" / name, generation=DRAWS, seed=seed)
    save_chat(folder / "draft", layers=1, seed=7)
    return folder


@pytest.fixture(scope="module")
def texts(home):
    """What each model writes, from Python."""
    found = {}
    for name in NAMES:
        pair = draftwood.load(home / "models" / name, home / "draft", options=LOADING)
        found[name] = pair.generate("the fox ran", seed=1, max_new_tokens=16).text
    assert len(set(found.values())) == 3
    return found


class Loads:
    """What was loaded, and how loading goes on."""

    def __init__(self):
        self.names = []
        self.open = threading.Event()
        self.open.set()
        self.models = []

    @property
    def alive(self):
        gc.collect()
        return [one() is not None for one in self.models]


@pytest.fixture
def loads(monkeypatch):
    found = Loads()

    def load(target, draft, *, options):
        found.names.append(Path(target).name)
        assert found.open.wait(60)
        pair = draftwood.load(target, draft, options=options)
        found.models.append(weakref.ref(pair.model))
        return pair

    monkeypatch.setattr(registry_module, "load", load)
    return found


def models(home):
    return {name: (str(home / "models" / name), str(home / "draft")) for name in NAMES}


@contextmanager
def server(home, found=None, **options):
    """A client of a server of these models, or of all in the folder."""
    registry = Registry(found or models(home), LOADING, ServeOptions(**options), METHOD)
    with on_port(registry) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        client.registry = registry
        yield client


def written(client, model, **fields):
    return text_of(choice(client, completion(model=model, **fields)))


def states(client):
    return {one["id"]: one["status"]["value"] for one in client.get("/v1/models").json()["data"]}


def there(client):
    """The loaded models."""
    return [one["model"] for one in client.get("/api/ps").json()["models"]]


# ---- by name ----


def test_each_request_gets_the_model_that_it_names(home, texts, loads):
    with server(home) as client:
        assert (client.get("/health").status_code, states(client)) == (200, dict.fromkeys(NAMES, "unloaded"))
        with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="any", max_retries=0) as api:
            for _ in range(2):
                for name in NAMES:
                    made = api.completions.create(model=name, prompt="the fox ran", seed=1, max_tokens=16)
                    assert (made.model, made.choices[0].text) == (name, texts[name])
            parts = api.completions.create(model="second", prompt="the fox ran", seed=1, max_tokens=16, stream=True)
            assert "".join(part.choices[0].text for part in parts) == texts["second"]
            assert [model.id for model in api.models.list()] == list(NAMES)
        assert loads.names == list(NAMES), "each one once"
        assert written(client, None) == texts["first"], "without a name it is the first"
        said = {}
        for name in NAMES:
            chat = {"model": name, "messages": MESSAGES, "max_tokens": 9, "seed": 1}
            message = client.post("/v1/messages", json=chat).json()
            answer = client.post("/v1/responses", json={"model": name, "input": MESSAGES[0]["content"], "seed": 1}).json()
            assert (message["model"], answer["model"]) == (name, name)
            said[name] = message["content"][0]["text"]
        assert len(set(said.values())) == 3


def test_another_name_is_refused_with_those_that_there_are(home, loads):
    chat = {"messages": MESSAGES, "max_tokens": 3}
    bodies = {
        "/v1/completions": {"prompt": "a"}, "/v1/chat/completions": chat, "/tokenize": {"prompt": "a"},
        "/v1/responses": {"input": "a"}, "/v1/messages": chat, "/v1/messages/count_tokens": {"messages": MESSAGES},
        "/api/show": {}, "/api/chat": chat, "/api/pull": {}, "/api/generate": {"keep_alive": 0},
    }  # fmt: skip
    with server(home) as client:
        for path, body in bodies.items():
            response = client.post(path, json={"model": "fourth", **body})
            assert response.status_code == 404
            assert all(repr(name) in error_of(response) for name in ("fourth", *NAMES))
            if path.startswith("/v1/messages"):
                assert (response.json()["type"], response.json()["error"]["type"]) == ("error", "not_found_error")
        assert not loads.names


def test_models_are_listed_and_described_before_they_are_loaded(home, loads):
    with server(home) as client:
        before = client.get("/api/tags").json()["models"]
        shown = client.post("/api/show", json={"model": "second"}).json()
        assert (shown["capabilities"], shown["model_info"]["llama.context_length"]) == (["completion", "tools"], 512)
        assert ("add_generation_prompt" in shown["template"], shown["model_info"]["general.architecture"]) == (True, "llama")
        assert [one["name"] for one in before] == list(NAMES)
        assert all(one["size"] > 1000 and one["details"]["family"] == "llama" for one in before)
        assert len({one["digest"] for one in before}) == 3
        assert (client.get("/api/ps").json()["models"], loads.names) == ([], [])
        written(client, "second")
        after = client.get("/api/tags").json()["models"]
        assert [one["digest"] for one in after] == [one["digest"] for one in before]
        again = client.post("/api/show", json={"model": "second"}).json()
        assert {name: again[name] for name in ("template", "capabilities")} == {
            name: shown[name] for name in ("template", "capabilities")
        }
        assert states(client) == {"first": "unloaded", "second": "loaded", "third": "unloaded"}
        [loaded] = client.get("/api/ps").json()["models"]
        assert (loaded["model"], loaded["context_length"], there(client)) == ("second", 512, ["second"])
        assert client.get("/v1/models/second").json()["max_model_len"] == 512
        assert client.get("/v1/models/third").json()["status"] == {"value": "unloaded"}


@pytest.mark.parametrize(("number", "name"), [(15, "Q4_K_M"), (2, "Q4_0"), (4, "MXFP4"), (99, "unknown"), (None, "unknown")])
def test_a_file_is_listed_with_its_quantisation(home, tmp_path, loads, number, name):
    file = write_gguf(tmp_path / "fox.gguf", *source(), metadata={"general.file_type": number})
    with server(home, {**models(home), "fox": (str(file), None)}) as client:
        levels = {one["name"]: one["details"]["quantization_level"] for one in client.get("/api/tags").json()["models"]}
        assert levels == {**dict.fromkeys(NAMES, ""), "fox": name}
        assert client.post("/api/show", json={"model": "fox"}).json()["details"]["quantization_level"] == name
        assert not loads.names


def test_a_name_may_end_with_the_tag_of_ollama(home, texts, loads):
    found = {f"{name}:latest" if name == "second" else name: paths for name, paths in models(home).items()}
    body = {"prompt": "the fox ran", "raw": True, "stream": False, "options": {"num_predict": 16, "seed": 1}}
    with server(home, found) as client:
        for sent, name in (("second:latest", "second:latest"), ("first:latest", "first"), ("first", "first")):
            made = client.post("/api/generate", json={"model": sent, **body}).json()
            assert (made["model"], made["response"]) == (name, texts[name.removesuffix(":latest")])
            assert client.post("/api/show", json={"name": sent}).status_code == 200


# ---- while one is loaded ----


def test_others_write_while_a_model_is_loaded_and_it_is_loaded_once(home, texts, loads):
    with server(home) as client, ThreadPoolExecutor() as pool:
        written(client, "first")
        loads.open.clear()
        waiting = [pool.submit(written, client, "second") for _ in range(4)]
        until(lambda: "loading" in states(client).values())
        assert client.get("/health").status_code == 200
        for _ in range(3):
            assert written(client, "first") == texts["first"]
        assert not any(one.done() for one in waiting)
        loads.open.set()
        assert {one.result() for one in waiting} == {texts["second"]}
    assert loads.names == ["first", "second"]


def test_no_stream_stalls_while_a_model_is_loaded(home, loads, slow):
    slow["load"] = 0.01
    with server(home) as client, ThreadPoolExecutor() as pool:
        written(client, "first", max_tokens=1)
        gaps, began = [], monotonic()
        body = {"model": "first", "prompt": "the fox ran", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            for number, _ in enumerate(response.iter_lines()):
                gaps.append(monotonic() - began)
                began = monotonic()
                if number == 2:
                    others = [pool.submit(written, client, name, max_tokens=1) for name in ("second", "third")]
                elif number > 2 and all(one.done() for one in others):
                    break
        assert len(loads.models) == 3, "control: they were loaded meanwhile"
        assert max(gaps) < sum(gaps) / 8, "a load that kept the stream waiting would take a third"


@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_the_format_that_another_load_sets_changes_no_text(home, backend):
    """``transformers`` sets PyTorch's default format, which is that of the process, while it builds a model."""
    pair = draftwood.load(
        home / "models" / "first", home / "draft",
        options=LoadOptions(dtype="float32", device="cpu", backend=backend, profile="none"),
    )  # fmt: skip
    for method in ("rsd-s", "shared-noise", "ngram"):
        for draws in ({"temperature": 0.8, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1}, {"temperature": 0.0}):
            given = {"seed": 1, "max_new_tokens": 12, "method": method, "logprobs": 2, **draws}
            wanted = pair.generate("the fox ran", **given)
            torch.set_default_dtype(torch.bfloat16)
            try:
                found = pair.generate("the fox ran", **given)
            finally:
                torch.set_default_dtype(torch.float32)
            assert (found.token_ids, found.text) == (wanted.token_ids, wanted.text)
            numbers = [[one.logprob for one in result.logprobs or ()] for result in (found, wanted)]
            assert numbers[0] == pytest.approx(numbers[1], abs=1e-5)


def test_a_load_that_fails_says_why_and_the_next_request_tries_again(home, texts, loads, tmp_path):
    folder = tmp_path / "second"
    copytree(home / "models" / "second", folder)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-10])
    found = {**models(home), "second": (str(folder), str(home / "draft"))}
    with server(home, found) as client:
        written(client, "first")
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2}),
                           ("/api/generate", {"prompt": "a"})):  # fmt: skip
            response = client.post(path, json={"model": "second", **body})
            said = error_of(response)
            assert response.status_code == 500
            assert said.startswith("the model 'second' cannot be loaded: ")
            assert "model.safetensors" in said
        assert states(client) == {"first": "loaded", "second": "unloaded", "third": "unloaded"}
        (folder / "model.safetensors").write_bytes(weights)
        assert written(client, "second") == texts["second"]
        assert written(client, "first") == texts["first"]


# ---- for how long ----


def kept(client, model, value, **fields):
    body = {"model": model, "keep_alive": value, "stream": False, "options": {"num_predict": 2}, **fields}
    return answer(client, body, path="/api/generate")


def test_a_model_goes_after_its_time_with_its_memory_and_comes_again(home, texts, loads):
    with server(home, keep_alive="1s") as client:
        assert written(client, "first") == texts["first"]
        assert there(client) == ["first"]
        until(lambda: not there(client) and loads.alive == [False])
        assert written(client, "first", trace=True) == texts["first"]
        assert loads.names == ["first", "first"]


def test_a_request_says_how_long_its_model_stays(home, loads):
    with server(home) as client:
        assert kept(client, "first", None)["done_reason"] == "load"
        assert kept(client, "second", -1, prompt="a")["load_duration"] > 1_000_000
        assert kept(client, "third", "1h")["done_reason"] == "load"
        ends = {one["name"]: one["expires_at"] for one in client.get("/api/ps").json()["models"]}
        assert ends["first"] < ends["third"] < ends["second"] == "2262-01-01T00:00:00Z"
        assert kept(client, "first", 0)["done_reason"] == "unload"
        kept(client, "third", 0, prompt="a")  # the model goes when its text has ended
        until(lambda: there(client) == ["second"] and loads.alive == [False, True, False])
        assert kept(client, "first", 0)["done_reason"] == "unload"
        assert (there(client), len(loads.names)) == (["second"], 3), "what is not there need not go"
    for bad in ("soon", ""):
        with pytest.raises(ConfigError, match="keep_alive"):
            ServeOptions(keep_alive=bad)


def test_a_model_stays_while_it_writes(home, loads, slow):
    with server(home, keep_alive="0") as client:
        body = {"model": "first", "prompt": "the fox ran", "max_tokens": 40, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            sleep(0.3)
            assert there(client) == ["first"]
            text = response.read().decode()
        assert chunks(text)[-1]["choices"][0]["finish_reason"] == "length"
        until(lambda: not there(client))


# ---- by memory ----


@pytest.fixture
def memory(loads, monkeypatch):
    """A machine whose memory holds so many models."""
    room = [0]

    def free():
        taken = sum(1 for one in loads.models if one() is not None)
        return 10_000_000_000 if taken < room[0] else 1000

    monkeypatch.setattr("draftwood.loading.causal.available_memory", free)
    monkeypatch.setattr("draftwood.serve.registry._SPARE", 0)
    return lambda count: room.__setitem__(0, count)


def test_the_least_recently_used_model_goes_where_memory_ends(home, texts, loads, memory):
    memory(4)  # each model comes with its draft model
    with server(home) as client:
        for name, left in (("first", ["first"]), ("second", ["first", "second"]), ("first", ["first", "second"])):
            assert written(client, name) == texts[name]
            assert there(client) == left
        memory(2)
        assert written(client, "third") == texts["third"]
        assert there(client) == ["first", "third"], "second was used before first"
        memory(0)
        response = client.post("/v1/completions", json={"model": "second", "prompt": "a"})
        assert (response.status_code, "GB of memory" in response.json()["error"]["message"]) == (500, True)
        assert there(client) == []
        memory(1)
        written(client, "first")
        loads.names.clear()
        memory(0)
        assert client.post("/v1/completions", json={"model": "second", "prompt": "a"}).status_code == 500
        assert (there(client), loads.names) == (["first"], ["second"]), "none goes for what did not fit alone"
        memory(4)
        assert written(client, "second") == texts["second"]


def test_no_model_goes_while_it_writes_and_no_request_waits_for_ever(home, texts, loads, memory, slow):
    memory(1)
    with server(home) as client, ThreadPoolExecutor() as pool:
        written(client, "first", max_tokens=1)
        long = pool.submit(written, client, "first", max_tokens=40, ignore_eos=True)
        sleep(0.1)
        other = pool.submit(written, client, "second")
        sleep(0.2)
        again = [pool.submit(written, client, name) for name in ("first", "second")]
        sleep(0.2)
        assert (long.done(), other.done(), there(client)) == (False, False, ["first"])
        assert len(long.result()) > 0
        assert [one.result() for one in (other, *again)] == [texts["second"], texts["first"], texts["second"]]
        assert loads.names[:2] == ["first", "second"]
        assert set(loads.names[2:]) == {"second", "first"} or loads.names[2:] == ["first"]


def test_a_client_that_does_not_read_keeps_no_other_model_from_loading(home, texts, memory, monkeypatch):
    """Neither side has large buffers, so that a short stream fills them."""
    monkeypatch.setattr(document, "UNREAD_SECONDS", 2.0)
    opened = conftest.listen

    def small(*args):
        found = opened(*args)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return found

    monkeypatch.setattr(conftest, "listen", small)
    memory(1)
    body = {"model": "first", "prompt": "a", "max_tokens": 60, "ignore_eos": True, "stream": True, "logprobs": 20, "n": 4}
    with server(home) as client, ThreadPoolExecutor() as pool, socket.socket() as deaf:
        written(client, "first", max_tokens=1)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((client.base_url.host, client.base_url.port))
        deaf.sendall(raw(body))
        assert deaf.recv(99).startswith(b"HTTP/1.1 200")
        other = pool.submit(written, client, "second")
        sleep(1)
        assert (other.done(), there(client)) == (False, ["first"]), "control: its texts have ended, and it is not gone yet"
        assert other.result(30) == texts["second"]


def test_a_translated_request_does_not_wait_for_itself_when_its_model_must_go(home, texts, loads, memory, monkeypatch):
    memory(1)
    reached, goes_on = threading.Event(), threading.Event()

    def held(*given):
        reached.set()
        assert goes_on.wait(60)
        return Ollama(*given)

    monkeypatch.setattr("draftwood.serve.app.Ollama", held)
    with server(home) as client, ThreadPoolExecutor() as pool:
        one = pool.submit(client.post, "/api/chat", json={"model": "first", "messages": MESSAGES, "stream": False})
        assert reached.wait(60)
        other = pool.submit(written, client, "second")
        until(lambda: any(stay.leaving for stay, _ in client.registry.loaded))
        goes_on.set()
        assert (one.result().status_code, other.result()) == (200, texts["second"])


def test_a_model_stays_whose_time_was_changed_while_another_was_loaded(home, loads):
    with server(home) as client, ThreadPoolExecutor() as pool:
        kept(client, "first", None)
        loads.open.clear()
        other = pool.submit(written, client, "second")
        until(lambda: "loading" in states(client).values())
        kept(client, "first", 0, prompt="a")
        sleep(0.1)  # its time ends, and it waits for the load
        kept(client, "first", -1, prompt="a")
        loads.open.set()
        other.result()
        kept(client, "third", 0)
        sleep(0.1)
        assert there(client) == ["first", "second"]


# ---- what outlives a model ----


def test_counts_and_traces_outlive_their_model(home, loads):
    with server(home, keep_alive="0") as client:
        body = {"model": "first", "prompt": "the fox ran", "max_tokens": 6, "ignore_eos": True, "trace": True}
        made = client.post("/v1/completions", json=body).json()
        until(lambda: not there(client))
        written(client, "second", max_tokens=3, ignore_eos=True)
        metrics = client.get("/metrics").text
        for name, tokens in (("first", 6), ("second", 3), ("third", 0)):
            assert value_of(metrics, f'generation_tokens_total{{model_name="{name}"}}') == tokens
        assert value_of(metrics, 'model_loads_total{model_name="first"}') == 1
        assert value_of(metrics, 'model_loaded{model_name="first"}') == 0
        assert metrics.count("# TYPE draftwood:generation_tokens_total") == 1
        [trace] = client.get(f"/v1/traces/{made['id']}").json()["traces"]
        assert trace["text"] == made["choices"][0]["text"]
        assert client.get("/").status_code == client.get("/v1/traces/german").status_code == 200
        until(lambda: loads.alive == [False, False])


# ---- the command ----


def test_targets_have_names(home, tmp_path):
    first, second = (str(home / "models" / name) for name in NAMES[:2])
    assert Targets().models == {"draftwood": (None, None)}
    assert Targets(target=(first,)).models == {"first": (first, None)}
    assert Targets(target=(f"mine={first}",), draft=("small",)).models == {"mine": (first, "small")}
    assert Targets(target=(first, f"other={second}"), draft=("none", "other=small")).models == {
        "first": (first, "none"), "other": (second, "small")
    }  # fmt: skip
    folder = str(home / "models")
    assert list(Targets(target=(folder,)).models) == list(NAMES)
    assert [Targets(target=one).several for one in ((), (first,), (folder,), (first, second))] == [False, False, True, True]
    for name in ("one.gguf", "deep/two-00001-of-00002.gguf", "deep/two-00002-of-00002.gguf", "deep/mmproj-two.gguf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list(Targets(target=(str(tmp_path),)).models) == ["one.gguf", "deep/two-00001-of-00002.gguf"]
    for given, says in (
        ({"target": (first, first)}, "two targets have the name 'first'"),
        ({"target": (f"a={folder}",)}, "folder of 3 models"),
        ({"target": (first, second), "draft": ("small",)}, "NAME of first, second"),
        ({"target": (first, second), "draft": ("x=small",)}, "none of the targets"),
    ):
        with pytest.raises(ConfigError, match=says):
            _ = Targets(**given).models


def test_the_command_serves_several_models(home, commanded, tmp_path):
    first, second = (str(home / "models" / name) for name in NAMES[:2])
    config = tmp_path / "serve.toml"
    config.write_text(f"target = {json.dumps([first, f'b={second}'])}\nkeep-alive = '1h'")
    for args, env, names in (
        (["--target", first, "--target", f"b={second}", "--keep-alive", "1h"], {}, ["first", "b"]),
        (["--target", str(home / "models")], {}, list(NAMES)),
        (["--config", str(config)], {}, ["first", "b"]),
        (["--config", str(config)], {"DRAFTWOOD_TARGET": f"{first},{second}"}, ["first", "second"]),
    ):
        run = CliRunner().invoke(main, ["serve", *args], env=env)
        assert run.exit_code == 0, run.output
        assert (commanded[-1].names, commanded[-1].texts) == (names, 0)
        assert all(model.service is None for model in commanded[-1].models), "none is loaded before a request"
    for args, says in (
        (["--name", "x"], "without --name"), (["--target", "nothing"], "'nothing'"), (["--method", "block"], "draft"),
        (["--keep-alive", "soon"], "keep_alive is 'soon'"), (["--adapt", "x"], "without --name and --adapt"),
    ):  # fmt: skip
        run = CliRunner().invoke(main, ["serve", "--target", first, "--target", second, *args])
        assert (run.exit_code in (1, 2), says in run.output) == (True, True), run.output
    assert len(commanded) == 4


# ---- the page ----


def test_a_reader_of_the_page_chooses_the_model(home, browser, loads):
    with server(home) as client:
        browser.driver.get(str(client.base_url))
        browser.wait(f"{PAGE}?.dataset.ready")
        for name in ("second", "first"):
            browser.js(f"{PAGE}.models.value = '{name}'; {PAGE}.models.dispatchEvent(new Event('change'))")
            browser.wait(f"{PAGE}.model === '{name}'")
            write(browser, "the fox ran", tokens=4)
            browser.wait(ENDED)
            assert browser.js(f"return {PAGE}.about.textContent") == name
            assert browser.js(f"return {PAGE}.run.body.model") == name
        assert loads.names == ["first", "second"]
        assert not serious(browser)
        assert not browser.problems()
