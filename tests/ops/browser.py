"""A headless Chromium in a test's hands, which remembers every complaint of the page."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@dataclass(slots=True)
class Visit:
    """One open page and what its console said."""

    page: Page
    complaints: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser that the system has installed."""
    with sync_playwright() as playwright:
        # Containers and root cannot make the sandbox; the only page is our own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visit(browser: Browser, url: str, **context: Any) -> Iterator[Visit]:
    """Opens `url` in a browser of its own; `context` as Playwright's `new_context` takes it."""
    own = browser.new_context(**context)
    one = Visit(own.new_page())
    one.page.on("console", lambda message: _note(one, message.type, message.text))
    one.page.on("pageerror", lambda error: _note(one, "error", str(error)))
    one.page.goto(url)
    yield one
    own.close()


def _note(one: Visit, kind: str, text: str) -> None:
    if kind in ("error", "warning"):
        one.complaints.append(f"{kind}: {text}")
