"""A page of 50 of 10,000 queues, the deepest first: at the management API, and in browsers, one and ten.

Times are those of an idle machine of two cores, and the best of a few counts. Where others have more to do than there
are cores, each of them has a share, and the limits are as many times longer.
"""

from __future__ import annotations

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import pytest

from angarium import blocking
from tests.integration.browser import Browser, program
from tests.integration.console_cost import CONSOLES, LOOK_S, SHARE, cpu_s
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
#: The same as a console asks for it, and how long it waits then: so long, and so many times as long as that took.
FIELDS: Final = f"{PAGE},delivered_unacked,oldest_stored_ms,access_type,ingress_enabled,egress_enabled"
RECENT: Final = "max-age=10"
PAUSE_S, PAUSE_PER_WORK = 3.0, 20
ROLES: Final = ("admin", "operator", "viewer")
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


def look_on(url: str, operator: str, end: float) -> list[float]:
    """Ask as a console that is open until then, and give how long each answer took."""
    api, times = Api(url, operator), []
    while time.monotonic() < end:
        began = time.perf_counter()
        assert len(api.get(FIELDS, Cache_Control=RECENT).value) == 50
        times.append(time.perf_counter() - began)
        time.sleep(max(PAUSE_S, PAUSE_PER_WORK * times[-1]))
    api.close()
    return times


def cost_of_ten(node: Node) -> tuple[dict[str, float], list[float]]:
    """Give the ms of CPU time in a second that each process takes for ten consoles, and how long they waited."""
    pids = {f"{row['role']}.{row['index']}": row["pid"] for row in node.status()["processes"]}
    told = {}
    with ThreadPoolExecutor(CONSOLES) as consoles:
        for count in (0, CONSOLES):
            for operator in ROLES:
                with closing(Api(node.management_url, operator)) as api:
                    api.get("/me")  # passwords are compared once a minute
            before, began = {role: cpu_s([pid]) for role, pid in pids.items()}, time.monotonic()
            operators = itertools.cycle(ROLES)
            looks = [
                consoles.submit(look_on, node.management_url, next(operators), began + LOOK_S)
                for _ in range(count)
            ]
            time.sleep(LOOK_S)
            took = time.monotonic() - began
            told[count] = {role: 1_000 * (cpu_s([pid]) - before[role]) / took for role, pid in pids.items()}
            times = [one for look in looks for one in look.result()]
    return {role: told[CONSOLES][role] - told[0][role] for role in pids}, times


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
        cost, waits = cost_of_ten(node)
        told = ", ".join(f"{role} {ms:.1f}" for role, ms in cost.items())
        print(
            f"ten consoles: {told} ms CPU each second; {len(waits)} answers in {1_000 * max(waits):.0f} ms at most"
        )
        carried = sum(ms for role, ms in cost.items() if role.startswith(("router", "worker")))
        assert carried < 1_000 * SHARE, told
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
