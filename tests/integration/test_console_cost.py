"""What an open console costs its node: ten of them take less than a fiftieth of the machine from its messages.

CPU time is compared, not time, so others who use the machine do not decide. One browser looks at the overview, the page
that asks for most; ten ask for ten times as much.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from cluster.admin.client import Admin
from tests.integration.browser import Browser, program
from tests.integration.console_cost import CONSOLES, LOOK_S, SHARE, cpu_s
from tests.integration.http_api import PASSWORD, managed_node

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.long]


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
