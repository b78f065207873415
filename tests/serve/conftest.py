"""A tiny chat model behind the server: in the process of the test, on a port, and with its page in Chromium."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from urllib.request import Request, urlopen

import openai
import pytest
import torch
from starlette.testclient import TestClient

import draftwood
from draftwood import LoadOptions, Method
from draftwood.runners.native.runner import NativeRunner
from draftwood.serve.app import make_app
from draftwood.serve.decoding.metrics import render
from draftwood.serve.decoding.scheduler import THREAD
from draftwood.serve.http.settings import ServeOptions
from draftwood.serve.registry import Registry
from draftwood.serve.run import listen, make_server
from draftwood.serve.service import Service
from draftwood.trace.files import from_json
from tests.serve.client import value_of
from tests.tiny_chat import save_chat

METHOD = Method(method="shared-noise", shape="2-2")
DRAWS = {"do_sample": True, "top_k": 0}
"""A generation config by which texts are drawn from the model's own distribution."""


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A target and its draft model."""
    folder = tmp_path_factory.mktemp("served")
    return save_chat(folder / "target", generation=DRAWS), save_chat(folder / "draft", layers=1, seed=1)


def loaded(folders, backend="native"):
    """A pair of its own: a server has its pair for itself. The native engine takes half of PyTorch's time."""
    return draftwood.load(*folders, options=LoadOptions(dtype="float32", device="cpu", backend=backend, profile="none"))


@pytest.fixture(scope="session")
def pair(folders):
    """The same models in Python."""
    return loaded(folders)


def make_service(pair, *, method=METHOD, **options):
    return Service(pair, ServeOptions(**options), name="tiny", method=method)


@pytest.fixture(scope="module")
def served(folders):
    """A pair for the servers of a file, one after the other."""
    return loaded(folders)


@pytest.fixture(scope="module")
def client(folders):
    """A client of a server with a pair of its own."""
    with serving(make_service(loaded(folders))) as found:
        yield found


@pytest.fixture(scope="module")
def live(served, request):
    """A server on a port, with the keys ``KEYS`` of the test's file."""
    with live_server(make_service(served), getattr(request.module, "KEYS", ())) as found:
        yield found


@pytest.fixture(scope="module")
def api(live):
    """The official client of a server on a port."""
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as found:
        yield found


@pytest.fixture
def opened(browser, live):
    """The page of a server whose key is ``secret``."""
    browser.size(1400)
    visit(browser, live)
    browser.problems()
    return browser


class Fault:
    """What happens in the forwards of one of the models: in all of them, or in that of a number alone."""

    def __init__(self):
        self.open = threading.Event()
        self.open.set()
        self.raises = self.nan = False
        self.calls, self.fails_at = 0, -1


@pytest.fixture
def faults(served, monkeypatch):
    """Those of the target and of the draft model."""
    target, draft = Fault(), Fault()
    extend = NativeRunner.extend

    def forward(self, *args):
        fault = target if self is served.target else draft if self is served.draft else Fault()
        fault.calls += 1
        assert fault.open.wait(60)
        if fault.raises or fault.calls == fault.fails_at:
            raise RuntimeError("a fault of the test")
        scores = extend(self, *args)
        if fault.nan:
            scores.logits.fill_(torch.nan)
        return scores

    monkeypatch.setattr(NativeRunner, "extend", forward)
    yield target, draft
    target.open.set()


@pytest.fixture
def commanded(monkeypatch):
    """What ``draftwood serve`` would serve."""
    found = []
    monkeypatch.setattr("draftwood.serve.run.serve", lambda served, *_: found.append(served))
    monkeypatch.setattr("draftwood.cli.serve.start_log", lambda form: None)  # the log is the process's
    return found


@pytest.fixture
def slow(monkeypatch):
    """Seconds that a forward takes more, of a text and at loading: no text ends before somebody acts."""
    extend, seconds = NativeRunner.extend, {"text": 0.02, "load": 0.0}

    def forward(self, *args):
        sleep(seconds["text" if threading.current_thread().name == THREAD else "load"])
        return extend(self, *args)

    monkeypatch.setattr(NativeRunner, "extend", forward)
    return seconds


@pytest.fixture
def target(faults):
    return faults[0]


@pytest.fixture
def draft(faults):
    return faults[1]


@contextmanager
def serving(service, keys=()):
    """A client of an application in this process."""
    with TestClient(make_app(Registry.of(service), keys), raise_server_exceptions=False) as client:
        yield client


@dataclass
class Live:
    """A server on a port."""

    service: Service
    port: int

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def metric(self, name):
        """As :func:`metric`, without a request."""
        return value_of(render(self.service.metrics).decode(), name)


@contextmanager
def live_server(service, keys=()):
    with on_port(Registry.of(service), keys) as port:
        yield Live(service, port)


@contextmanager
def on_port(registry, keys=()):
    """The port of a server in this process."""
    with listen("127.0.0.1", 0) as found:
        server = make_server(registry, keys)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [found]})
        thread.start()
        until(lambda: server.started)
        try:
            yield found.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def process(target, *options):
    """A server in a process of its own: the process, its address, and the lines that it writes. It ends with status 0."""
    command = [sys.executable, "-m", "draftwood", "serve", "--target", target, "--port", "0", "--name", "tiny", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as found:
        assert found.stderr is not None
        lines = iter(found.stderr.readline, "")
        url = next(match[0] for line in lines if (match := re.search(r"http://127\.0\.0\.1:\d+", line)))
        try:
            yield found, url, lines
        finally:
            found.terminate()
            list(lines)
        assert found.wait(60) == 0


def until(done, seconds=30.0):
    """Wait until something is true; it fails the test if that takes too long."""
    end = monotonic() + seconds
    while not done():
        assert monotonic() < end, "waited in vain"
        sleep(0.005)


# ---- the page in Chromium: how a reader opens it, and writes ----

HEADERS = {"Authorization": "Bearer secret"}
PAGE = "document.querySelector('dw-live')"
ENDED = f"{PAGE}.run?.facts?.end && {PAGE}.stop.disabled"
CODES = {"Shift": "\ue008", "Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "ArrowLeft": "\ue012"}  # of WebDriver


def visit(browser, live):
    """Open the page of a server whose key is ``secret``."""
    browser.driver.get(live.url)
    browser.wait(f"{PAGE}?.dataset.ready")
    browser.driver.find_element("css selector", "[type=password]").send_keys("secret\n")
    browser.wait(f"{PAGE}.model")


def press(browser, *keys):
    """Type on the keyboard, wherever the focus is: texts, and names of keys."""
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser.driver).send_keys(*(CODES.get(key, key) for key in keys)).perform()


def choose(browser, **fields):
    """Fill fields of the settings as a reader does."""
    settings = f"{PAGE}.settings"
    if not browser.js(f"return {settings}.box.open"):
        browser.driver.find_element("css selector", "dw-settings summary").click()
    for name, value in fields.items():
        field = browser.js(f"return {settings}.{name} ?? {settings}.drawn.{name}")
        if isinstance(value, bool):
            if field.is_selected() != value:
                field.click()
        else:
            field.clear()
            field.send_keys(str(value))


def write(browser, prompt, *, tokens=24, seed=1, chat=False):
    """Choose, type, and press the button."""
    choose(browser, length=tokens, seed=seed, chat=chat)
    field = browser.js(f"return {PAGE}.prompt")
    field.clear()
    field.send_keys(prompt)
    browser.driver.find_element("css selector", "button.main").click()


def get(live, path):
    with urlopen(Request(live.url + path, headers=HEADERS)) as response:
        return str(response.read().decode())


def trace_of(browser, live, run=0):
    """The server's trace of a run on the page."""
    name = browser.js(f"return {PAGE}.source.runs[{run}].id")
    [found] = from_json(json.loads(get(live, f"/v1/traces/{name}")))
    return found
