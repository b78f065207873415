"""The page of a server in Chromium: how a reader opens it, and writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from draftwood import Trace
from draftwood.trace.files import from_json
from tests.browser import Browser

if TYPE_CHECKING:
    from tests.serve.conftest import Live  # which opens pages

HEADERS = {"Authorization": "Bearer secret"}
PAGE = "document.querySelector('dw-live')"
ENDED = f"{PAGE}.run?.facts?.end && {PAGE}.stop.disabled"
KEYS = {"Shift": "\ue008", "Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "ArrowLeft": "\ue012"}  # of WebDriver


def visit(browser: Browser, live: Live) -> None:
    """Open the page of a server whose key is ``secret``."""
    browser.driver.get(live.url)
    browser.wait(f"{PAGE}?.dataset.ready")
    browser.driver.find_element("css selector", "[type=password]").send_keys("secret\n")
    browser.wait(f"{PAGE}.model")


def press(browser: Browser, *keys: str) -> None:
    """Type on the keyboard, wherever the focus is: texts, and names of keys."""
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser.driver).send_keys(*(KEYS.get(key, key) for key in keys)).perform()


def choose(browser: Browser, **fields: Any) -> None:
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


def write(browser: Browser, prompt: str, *, tokens: int = 24, seed: int = 1, chat: bool = False) -> None:
    """Choose, type, and press the button."""
    choose(browser, length=tokens, seed=seed, chat=chat)
    field = browser.js(f"return {PAGE}.prompt")
    field.clear()
    field.send_keys(prompt)
    browser.driver.find_element("css selector", "button.main").click()


def get(live: Live, path: str) -> str:
    with urlopen(Request(live.url + path, headers=HEADERS)) as response:
        return str(response.read().decode())


def trace_of(browser: Browser, live: Live, run: int = 0) -> Trace:
    """The server's trace of a run on the page."""
    name = browser.js(f"return {PAGE}.source.runs[{run}].id")
    [found] = from_json(json.loads(get(live, f"/v1/traces/{name}")))
    return found
