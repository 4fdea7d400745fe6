"""Opens the console of a node in Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: run `make test-browser`")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
#: The marks of every test that opens a browser.
IN_BROWSER = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: run `make test-browser`"),
    # Playwright's own event loop leaves sockets of its driver behind.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
SHOTS = Path(os.environ.get("CONSOLE_SCREENSHOTS", "build/console"))
LIMIT_MS = 60_000


@contextmanager
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield running
        running.close()


class Console:
    """A page of the browser that shows the console of a node, and fails the test if a script fails."""

    def __init__(self, browser: Any, url: str, scheme: str = "light", **context: Any) -> None:
        self.url = url
        self.context = browser.new_context(
            color_scheme=scheme, viewport={"width": 1360, "height": 900}, accept_downloads=True, **context
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(LIMIT_MS)
        self.failures: list[str] = []
        #: The bytes of each answer of the REST API, by path.
        self.answers: list[tuple[str, int]] = []
        self.page.on("pageerror", lambda error: self.failures.append(str(error)))
        self.page.on("console", self._said)

    def count_answers(self) -> None:
        """Notes the size of every answer of the REST API from now on."""
        self.page.on("requestfinished", self._answered)

    def _answered(self, request: Any) -> None:
        if "/v1/" in request.url and not request.url.endswith("/stream"):
            self.answers.append((request.url, request.sizes()["responseBodySize"]))

    def _said(self, line: Any) -> None:
        # The browser also reports answers of the node that are no success; the page shows these to the user.
        if line.type == "error" and "Failed to load resource" not in line.text:
            self.failures.append(line.text)

    def open(self, where: str) -> Any:
        self.page.goto(f"{self.url}#/{where}")
        self.page.wait_for_selector("main h1, main .cards")
        return self.page

    def shoot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(SHOTS / f"{name}.png"))

    def close(self) -> None:
        hacked = self.page.evaluate("window.hacked")
        self.context.close()
        assert hacked is None, "a name or a value was run as a script"
        assert self.failures == []
