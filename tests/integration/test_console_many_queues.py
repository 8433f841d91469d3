"""A page of 50 of 10,000 queues, the deepest first: at the management API, and on the screen of a browser.

Times are those of an idle machine of two cores, and the best of a few counts. Where others have more to do than there
are cores, each of them has a share, and the limits are as many times longer.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from angarium import blocking
from tests.integration.browser import Browser, program
from tests.integration.http_api import PASSWORD, Api, managed_node
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from angarium_server.testing import Node

pytestmark = pytest.mark.slow

QUEUES: Final = 10_000
#: Of them, made in one step.
AT_ONCE: Final = 1_000
#: Those that hold something; the deepest is the last one.
FILLED: Final = 200
PAGE: Final = (
    "/queues?sort=-messages_spooled&limit=50&fields=vpn,name,messages_spooled,spool_usage_bytes,"
    "messages_in_per_s,messages_out_per_s,bind_count"
)
LOOKS: Final = 7
API_S, BROWSER_MS = 0.3, 1_000.0
DEEPEST: Final = f"q/{QUEUES - 1:05}"
#: Go to the queues, and give how many ms later the first page of them was drawn.
OPEN: Final = f"""new Promise((done) => {{
    const began = performance.now();
    location.hash = "#/queues";
    const first = () => document.querySelector("tbody th").innerText;
    const look = () => document.querySelectorAll("tbody tr").length === 50 && first() === "{DEEPEST}"
        ? done(performance.now() - began) : requestAnimationFrame(look);
    requestAnimationFrame(look);
}})"""


def shared_by() -> float:
    """Give how many share a core of the machine."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def make_queues(node: Node, folder: Path) -> None:
    node.run("vpn", "update", "default", "--set", f"max_endpoint_count={2 * QUEUES}")
    file = folder / "queues.toml"
    for first in range(0, QUEUES, AT_ONCE):
        names = (f"q/{number:05}" for number in range(first, first + AT_ONCE))
        file.write_text("".join(f'[vpn.default.queue."{name}"]\nowner = "default"\n' for name in names))
        node.run("config", "apply", str(file), "--timeout", "60")
    with blocking.connect(node.url) as client, client.producer() as producer:
        for number in range(FILLED):
            for _ in range(1 + number // 20):
                producer.publish(f"#P2P/QUE/q/{number:05}", b"x" * 100)
        for _ in range(20):
            producer.publish(f"#P2P/QUE/{DEEPEST}", b"x" * 100)
        producer.flush()


def asked(api: Api) -> tuple[float, list[dict[str, Any]]]:
    began = time.perf_counter()
    answer = api.get(PAGE)
    assert int(answer.headers["Total-Count"]) >= QUEUES
    return time.perf_counter() - began, answer.value


def drawn(browser: Browser) -> float:
    browser.value("location.hash = '#/'")
    browser.sees("Messages stored")
    took: float = browser.value(OPEN)
    return took


@pytest.mark.long
@pytest.mark.requirement("R262", "R263")
@pytest.mark.timeout(600)
def test_a_page_of_many_queues_is_there_at_once(tmp_path: Path) -> None:
    with managed_node(tmp_path) as node:
        make_queues(node, tmp_path)
        api = Api(node.management_url)
        wait_until(lambda: asked(api)[1][0]["messages_spooled"] == 20, "the deepest is the first")
        times = [asked(api)[0] for _ in range(LOOKS)]
        assert min(times) < API_S * shared_by(), times
        api.close()
        if program() is None:
            pytest.skip("there is no Chromium here: install the package chromium")
        folder = tmp_path / "chromium"
        folder.mkdir()
        with Browser(folder) as browser:
            browser.open(f"{node.management_url}/")
            browser.fill("Operator", "admin")
            browser.fill("Password", PASSWORD)
            browser.press("Enter")
            browser.sees("Log out")
            on_screen = [drawn(browser) for _ in range(LOOKS)]
        assert min(on_screen) < BROWSER_MS * shared_by(), on_screen
    print(f"API {[round(1_000 * one) for one in times]} ms, browser {[round(one) for one in on_screen]} ms")
