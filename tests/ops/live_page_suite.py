"""The live page in a real browser, over a real mesh.

`make test-ops` runs it; its name keeps it out of other runs, because it needs Chromium installed.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.integration.processes import Mesh, serving
from tests.ops.browser import CHROMIUM, Visit, chromium, visit

pytestmark = pytest.mark.timeout(300)

WIDE = {"width": 1200, "height": 900}
PHONE = {"width": 390, "height": 844}
# If set, a screenshot for the documentation is written to this folder.
PICTURES = os.environ.get("STAGEMESH_PICTURES")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.exit("not installed: chromium (on Debian: apt-get install chromium)", 1)
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    """A mesh of the bundled model: two stages, the second with two ranks."""
    with serving("smollm2", "--tp", "1,2", "--kv-memory", "256MiB") as one:
        yield one
        one.stop()


@pytest.fixture
def live(browser: Browser, mesh: Mesh) -> Iterator[Visit]:
    with visit(browser, f"http://{mesh.http}/", viewport=WIDE) as one:
        expect(one.page.locator(".stage")).to_have_count(2)
        yield one


def ask(page: Page, question: str) -> None:
    """Types and sends a chat message with the keyboard."""
    page.get_by_label("Message").fill(question)
    page.keyboard.press("Enter")


def test_page_shows_the_plan_without_console_errors(live: Visit, mesh: Mesh) -> None:
    state = mesh.state()
    expect(live.page.locator("#phase")).to_have_text("ready")
    expect(live.page.locator("#model")).to_have_text("smollm2")
    for stage in state.replicas[0].stages:
        node = live.page.locator(".stage").nth(stage.stage)
        layers = f"layers {stage.first_layer}-{stage.first_layer + stage.num_layers - 1}"
        expect(node).to_contain_text(layers)
        expect(node.locator(".ranks li")).to_have_count(stage.stage + 1)
    expect(live.page.locator(".stage").nth(1)).to_contain_text("rank 1: 127.0.0.1")
    expect(live.page.locator("#pipelines .badge")).to_have_text("serving")
    for worker in state.workers:
        expect(live.page.locator(".tile", has_text=worker.address)).to_contain_text("serving")
    expect(live.page.locator("#join")).to_have_text(
        f"stagemesh worker --coordinator {state.mesh_address}"
    )
    assert live.complaints == []


def test_chat_streams_an_answer_while_the_graph_shows_the_load(live: Visit) -> None:
    ask(live.page, "Give me three tips for staying healthy.")
    answer = live.page.locator(".bubble.assistant")
    expect(answer).not_to_be_empty(timeout=30_000)
    expect(live.page.locator(".line.busy")).to_have_count(2)
    expect(live.page.locator(".link").nth(1)).to_contain_text(re.compile("B/s"))
    expect(live.page.locator("#totals")).to_contain_text("running1")
    scheduler = live.page.locator("#schedulers .scheduler")
    expect(scheduler).to_contain_text("adaptive")
    expect(scheduler).to_contain_text(re.compile(r"microbatches\d+ of \d+"))
    expect(scheduler.get_by_role("meter", name="idle: starved, replica 0")).to_be_visible()
    if PICTURES:
        expect(answer).to_have_text(re.compile(r"[^$]{200,}"), timeout=60_000)
        live.page.screenshot(path=Path(PICTURES) / "live.png", full_page=True)
    live.page.get_by_role("button", name="Stop").click()
    expect(live.page.get_by_role("button", name="Send")).to_be_visible()
    # Stopping the answer releases its slot.
    expect(live.page.locator("#totals")).to_contain_text("running0")
    assert live.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_viewport_has_no_horizontal_scrolling(
    browser: Browser, mesh: Mesh, scheme: str
) -> None:
    url = f"http://{mesh.http}/"
    with visit(browser, url, viewport=PHONE, color_scheme=scheme) as one:
        expect(one.page.locator(".stage")).to_have_count(2)
        assert one.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_keyboard_reaches_chat_and_join_command(live: Visit) -> None:
    live.page.keyboard.press("Tab")
    expect(live.page.get_by_role("link", name="Skip to the chat")).to_be_focused()
    reached = set()
    for _ in range(12):
        live.page.keyboard.press("Tab")
        reached.add(live.page.evaluate("document.activeElement.id"))
    assert {"question", "send", "join", "copy"} <= reached


def test_generated_text_is_never_markup(live: Visit) -> None:
    ask(live.page, "<img src=x onerror=alert(1)>")
    expect(live.page.locator(".bubble.user")).to_have_text("<img src=x onerror=alert(1)>")
    assert live.page.locator(".bubble img").count() == 0


def test_recovery_is_listed_and_a_lost_connection_is_reported(browser: Browser) -> None:
    with (
        serving("smollm2", "--pp", "2", "--kv-memory", "256MiB") as mesh,
        visit(browser, f"http://{mesh.http}/", viewport=WIDE) as one,
    ):
        expect(one.page.locator("#phase")).to_have_text("ready")
        workers = [child for child in mesh.command.descendants() if "worker" in child.cmdline()]
        workers[-1].kill()
        recovery = one.page.locator("#recoveries li")
        expect(recovery).to_contain_text("worker died", timeout=60_000)
        expect(recovery).to_contain_text("served again after", timeout=60_000)
        mesh.stop()
        expect(one.page.locator("#lost")).to_contain_text("Connection lost", timeout=10_000)
