"""What an open console costs its node: ten of them take less than a fiftieth of the machine from its messages.

CPU time is compared, not time, so others who use the machine do not decide. One browser looks at the overview, the page
that asks for most; ten ask for ten times as much.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import pytest

from cluster.admin.client import Admin
from tests.integration.browser import Browser, program
from tests.integration.http_api import PASSWORD, managed_node

pytestmark = [pytest.mark.slow, pytest.mark.long]

CONSOLES: Final = 10
SHARE: Final = 0.02
#: How long it is looked at; passwords are compared before that.
LOOK_S: Final = 30.0


def cpu_s(pids: list[int]) -> float:
    """Give the CPU time of processes so far."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


def load_of(pids: list[int], browser: Browser) -> float:
    """Give how many seconds of CPU time they take in a second, while the browser is there."""
    before, began = cpu_s(pids), time.monotonic()
    browser.settle(LOOK_S)
    return (cpu_s(pids) - before) / (time.monotonic() - began)


@pytest.mark.requirement("R262")
def test_ten_open_consoles_take_less_than_a_fiftieth_of_the_machine(tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("there is no Chromium here: install the package chromium")
    folder = tmp_path / "chromium"
    folder.mkdir()
    with managed_node(tmp_path) as node, Browser(folder) as browser:
        with Admin(node.data) as admin:
            pids = [row["pid"] for row in admin.call("status")["processes"]]
        browser.open(f"{node.management_url}/")
        browser.until("document.activeElement?.name === 'name'")
        idle = load_of(pids, browser)
        browser.fill("Operator", "admin")
        browser.fill("Password", PASSWORD)
        browser.press("Enter")
        browser.sees("Messages stored")
        asked = len(browser.requested)
        cost = load_of(pids, browser) - idle
        requests = len(browser.requested) - asked
    told = (
        f"{requests} requests in {LOOK_S:g} s: {1_000 * cost:.2f} ms CPU each second, idle {1_000 * idle:.2f}"
    )
    print(told)
    assert requests > LOOK_S / 10, told
    assert CONSOLES * cost < SHARE * (os.cpu_count() or 1), told
