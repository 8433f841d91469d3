"""Lists for operators are made in turns, and are whole however long they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import blocking
from cluster.admin.client import Admin

if TYPE_CHECKING:
    from angarium_server.testing import Node


@pytest.mark.requirement("R278")
@pytest.mark.parametrize("count", [0, 1, 60])
def test_a_list_has_each_row_once(angarium_node: Node, count: int) -> None:
    """Twenty rows are made between two looks at the clock."""
    filters = [f"listed/{number:03}" for number in range(count)]
    with (
        Admin(angarium_node.data) as admin,
        blocking.connect(angarium_node.url, client_name="lists") as client,
    ):
        subscribed = [client.subscribe(one) for one in filters]
        found = admin.call("subscriptions.list", vpn="default", client="lists")
        assert [one["filter"] for one in found if not one["filter"].startswith("#")] == filters
        assert len(subscribed) == count
