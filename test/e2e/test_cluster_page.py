"""The page of a cluster of real workers in a real browser, with an island that is lost while it is open."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from attached import ServiceInThreads
from requirements import CHROMIUM

import pathways as pw
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.metrics.feed import MetricsFeed
from pathways.runtime.metrics.snapshots import Snapshot

with contextlib.suppress(ModuleNotFoundError):
    from playwright.sync_api import Browser, Page, expect, sync_playwright

pytestmark = [pytest.mark.process, pytest.mark.needs("chromium")]

PICTURES = Path(__file__).parents[2] / "build" / "test"
SECONDS = 60
"""Time for a worker to be lost, or to restart."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Without the sandbox, which a root user cannot have.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceInThreads]:
    """Starts a service with two islands."""
    pw.disconnect()
    served = ServiceInThreads(Settings((Island(devices_per_host=2),) * 2), tmp_path_factory.mktemp("service"))
    yield served
    served.close()


@pytest.fixture(scope="module")
def address(service: ServiceInThreads) -> Iterator[str]:
    """Serves its page."""

    def take() -> Snapshot:
        return Snapshot("lab", service.service.status(), service.service.accounts() or ())

    with MetricsFeed(("127.0.0.1", 0), take, seconds=0.2) as feed:
        yield "http://{}:{}/".format(*feed.address)


@pytest.fixture
def problems() -> list[str]:
    """Errors of pages, and their requests to other servers."""
    return []


def opened(browser: Browser, address: str, problems: list[str], **options: object) -> Page:
    """Opens the page in a window of its own."""
    page = browser.new_context(**options).new_page()
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if request.url == address else problems.append(request.url))
    for _ in range(100):
        reply = page.goto(address)
        if reply is not None and reply.status == 200:
            break
        page.wait_for_timeout(100)
    return page


def wait_until(page: Page, condition: str) -> None:
    """Waits for a condition in JavaScript; Playwright cannot, under the policy of the page."""
    for _ in range(SECONDS * 10):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    raise AssertionError(condition)


def picture(page: Page, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"page_{name}.png", full_page=True)


def test_the_page_follows_clients_and_losses(
    browser: Browser, service: ServiceInThreads, address: str, problems: list[str]
) -> None:
    page = opened(browser, address, problems, viewport={"width": 1200, "height": 900})
    expect(page.get_by_text("2 of 2 islands running")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text("lab")
    with service.attached("ann", hosts=2):
        devices = pw.make_virtual_device_set()
        step = pw.jit(lambda x: jnp.sin(x @ x), devices=devices.add_slice((2,), ("x",), island="island1"))
        program = pw.program(lambda x: step(x))
        x = np.ones((256, 256), np.float32)
        for _ in range(50):
            result = program(x)
        result.block_until_ready()
        row = page.get_by_role("row", name="ann")
        expect(row).to_contain_text("50")
        strip = page.get_by_role("img", name="island1, last minute: ann")
        expect(strip).to_be_visible(timeout=SECONDS * 1000)
        picture(page, "client")
        (island,) = [each for each in service.service.status().islands if each.name == "island1"]
        os.kill(island.hosts[0].pid, signal.SIGKILL)
        article = page.get_by_role("article").filter(has_text="island1")
        expect(article).to_contain_text("lost 1 time", timeout=SECONDS * 1000)
        picture(page, "lost")
        expect(page.get_by_text("2 of 2 islands running")).to_be_visible(timeout=SECONDS * 1000)
    expect(page.locator("#clients")).to_contain_text("none", timeout=SECONDS * 1000)
    assert problems == []


def test_the_page_is_complete_without_javascript_in_a_narrow_dark_window(
    browser: Browser, address: str, problems: list[str]
) -> None:
    page = opened(
        browser,
        address,
        problems,
        java_script_enabled=False,
        color_scheme="dark",
        viewport={"width": 400, "height": 800},
    )
    expect(page.get_by_text("of 2 islands running")).to_be_visible()
    expect(page.get_by_role("article")).to_have_count(2)
    expect(page.get_by_role("table")).to_have_count(1)
    picture(page, "narrow_dark")
    assert problems == []


def test_the_page_fits_a_narrow_window_and_follows_the_scheme(
    browser: Browser, address: str, problems: list[str]
) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        page = opened(browser, address, problems, color_scheme=scheme, viewport={"width": 400, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2
    assert problems == []


def test_the_page_can_be_read_by_keyboard_while_it_refreshes(
    browser: Browser, address: str, problems: list[str]
) -> None:
    page = opened(browser, address, problems, viewport={"width": 400, "height": 800})
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "hosts-table"
    page.keyboard.press("ArrowRight")
    wait_until(page, "document.getElementById('hosts-table').scrollLeft > 0")
    # Until the elements are new ones.
    page.evaluate("document.querySelector('main').dataset.old = 'yes'")
    wait_until(page, "document.querySelector('main').dataset.old === undefined")
    assert page.evaluate("document.activeElement.id") == "hosts-table"
    assert page.evaluate("document.getElementById('hosts-table').scrollLeft") > 0
    assert problems == []
