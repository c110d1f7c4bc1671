"""A headless Chromium that records the errors and warnings of a page."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@dataclass(slots=True)
class Visit:
    """One open page and its console messages."""

    page: Page
    complaints: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Starts the installed Chromium."""
    with sync_playwright() as playwright:
        # The sandbox needs privileges that containers and root lack; the only page is our own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visit(browser: Browser, url: str, **context: Any) -> Iterator[Visit]:
    """Opens `url` in a new context; `context` has the options of Playwright's `new_context`."""
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
