"""Every figure that operators see is explained in docs/metrics.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from router.ground.metrics import LINK, ROUTER, SPOOL
from tests.unit.declared_metrics import differences
from tests.unit.router.wired_mesh import WiredMesh

if TYPE_CHECKING:
    from tests.unit.router.wired_node import WiredNode

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def _undocumented(names: list[str]) -> list[str]:
    return sorted(name for name in names if f"`{name}`" not in PAGE)


def _in_source(pattern: str) -> list[str]:
    found: set[str] = set()
    for folder in ("router", "node", "cluster"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(pattern, path.read_text(encoding="utf-8")))
    return sorted(found)


def test_all_that_is_told_of_a_client_is_documented(node: WiredNode) -> None:
    client = node.client(client_name="c")
    client.subscribe("a")
    assert _undocumented(list(node.router.operators.client("default", "c", node.now))) == []
    assert _undocumented(list(next(node.router.operators.subscriptions(None, "c")))) == []


def test_the_router_answers_the_metrics_that_it_declares(node: WiredNode) -> None:
    stats = node.router.stats()
    of_the_shell = ("in_use_bytes", "unauthenticated")
    assert differences(ROUTER, stats, of_the_shell) == []
    assert differences(SPOOL, stats["spool"]) == []


def test_the_router_answers_the_metrics_of_a_link_that_it_declares() -> None:
    (row,) = WiredMesh("a", "b")["a"].router.stats()["links"]
    assert differences(LINK, row) == []


def test_every_reason_for_a_discard_is_documented() -> None:
    reasons = _in_source(r'"discard\.([a-z-]+)"')
    assert len(reasons) >= 9
    assert _undocumented(reasons) == []


def test_every_event_is_documented() -> None:
    events = _in_source(r'"((?:SYSTEM|CLIENT|VPN)_[A-Z_]+)"')
    assert len(events) >= 5
    assert _undocumented(events) == []
