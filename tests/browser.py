"""Chromium for tests of figures and of pages."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest


class Browser:
    """A Chromium.

    Attributes:
        driver: selenium's.
    """

    def __init__(self, driver):
        self.driver = driver

    def size(self, width, height=1000, *, dark=False, still=False):
        """Viewport in CSS pixels, colour scheme, and whether less motion is wanted."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, path):
        self.driver.get(path.as_uri())

    def js(self, code, *values):
        return self.driver.execute_script(code, *values)

    def wait(self, code, seconds=20.0):
        """Until the expression is true; its value."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, seconds, poll_frequency=0.02).until(
            lambda driver: driver.execute_script(f"return {code}")
        )

    def shows_nodes(self, nodes):
        """Assert that the figure on the page has these nodes of a trace, with their numbers."""
        found = self.js(
            "return [...document.querySelectorAll('[data-round] .node[data-node]')].map((n) => ({...n.dataset}))"
        )
        drawn = {int(node["node"]): node for node in found}
        assert set(drawn) == set(range(len(nodes)))
        for number, node in drawn.items():
            assert (node["verdict"], int(node["token"])) == (nodes[number].verdict, nodes[number].token)
            for key, value in (("targetProb", nodes[number].target_prob), ("draftProb", nodes[number].draft_prob)):
                assert value is None or float(node[key]) == pytest.approx(value, rel=1e-5)

    def problems(self):
        """Errors and refused requests that the browser reported since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


def start():
    """A browser until the generator ends; skips without Chromium."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    driver_path = shutil.which("chromedriver")
    if binary is None or driver_path is None:
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
    yield Browser(driver)
    driver.quit()


def serious(browser):
    """What axe-core finds that is serious: rule and element."""
    spec = find_spec("axe_core_python")
    if spec is None:
        pytest.skip("needs axe-core: pip install axe-core-python")
    source = Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8")
    # Run by the driver, which the page's policy does not bind.
    browser.js(source)
    found = browser.driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    assert found["passes"]
    return [(v["id"], v["nodes"][0]["html"]) for v in found["violations"] if v["impact"] in ("serious", "critical")]
