"""An endpoint is where it was made: another node neither knows it nor minds the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import blocking, errors
from angarium_server.testing import Node

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.requirement("R89", "R91")
def test_a_queue_is_visible_on_its_node_only(tmp_path: Path) -> None:
    with Node(tmp_path / "a", workers=1) as here, Node(tmp_path / "b", workers=1) as there:
        with blocking.connect(here.url) as client:
            client.create_queue("orders", subscriptions=["orders/>"])
            client.publish("orders/1", b"here", mode="persistent")
        with blocking.connect(there.url) as other:
            with pytest.raises(errors.NotFoundError) as caught:
                other.consume("orders")
            assert caught.value.code == errors.UNKNOWN_ENDPOINT
            other.create_queue("orders", subscriptions=["orders/>"])
            other.publish("orders/2", b"there", mode="persistent")
            with other.consume("orders") as flow:
                assert next(iter(flow)).payload == b"there"
        with blocking.connect(here.url) as client, client.consume("orders") as flow:
            assert next(iter(flow)).payload == b"here"
