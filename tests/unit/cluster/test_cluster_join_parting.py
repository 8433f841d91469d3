"""What goes before a node leaves: the queues of its links are shut and get empty, or are opened again."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from cluster.join import parting
from cluster.join.parting import empty, waiting_messages

Row = dict[str, Any]


class PlayedNode:
    """Answers as node a with a link to b; `waits` are the messages at a and at b, the first ones at the next look."""

    def __init__(self, *waits: tuple[int, int], state: str = "up", heard_s: float = 0.0) -> None:
        self.waits = list(waits)
        #: Dead messages at b, and from which look on.
        self.dead, self.dead_from = 0, 0
        self.state, self.heard_s = state, heard_s
        self.takes = True
        self.told: list[str] = []
        self.looks = 0

    def call(self, operation: str, **given: Any) -> Any:
        if operation == "objects.list":
            assert given == {"kind": "queue", "vpn": None, "name": "#link/b"}
            return [{"vpn": "v", "name": "#link/b", "ingress_enabled": self.takes}]
        if operation == "objects.update":
            assert (given["vpn"], given["name"]) == ("v", "#link/b")
            self.takes = given["attributes"]["ingress_enabled"]
            return None
        assert operation == "cluster.status"
        if not self.told:  # nobody is refused anything yet
            return {"node": "a", "links": [self._row("a", "b", 0), self._row("b", "a", 0)]}
        assert not self.takes
        assert self.told == ["part"]
        self.looks += 1
        here, there = self.waits.pop(0) if len(self.waits) > 1 else self.waits[0]
        return {"node": "a", "links": [self._row("a", "b", here), self._row("b", "a", there)]}

    def _row(self, node: str, neighbour: str, count: int) -> Row:
        more = {"state": self.state, "stale": False, "heard_s": self.heard_s if node == "b" else 0.0}
        more["dead_messages"] = self.dead if node == "b" and self.looks >= self.dead_from else 0
        return {"node": node, "neighbour": neighbour, "spooled_messages": count, "retry_messages": 0, **more}


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parting, "EMPTY_S", 0.5)
    monkeypatch.setattr(parting, "SEEN_S", 0.1)
    monkeypatch.setattr(parting, "LOOK_S", 0.01)


def test_what_waits_at_either_end_crosses_before_the_node_leaves() -> None:
    node = PlayedNode((3, 0), (0, 2), (0, 0))
    empty(node, ["b"], node.told.append)  # type: ignore[arg-type]
    assert node.looks > 3, "a report that is older than the shutting says nothing"
    assert not node.takes
    assert node.told == ["part"]


@pytest.mark.parametrize("state", ["up", "down"])
def test_queues_that_do_not_get_empty_take_messages_again(state: str) -> None:
    node = PlayedNode((0, 2), state=state)
    with pytest.raises(errors.ConflictError, match="2 from b to a"):
        empty(node, ["b"], node.told.append)  # type: ignore[arg-type]
    assert node.takes
    assert node.told == ["part", "stay"]
    assert (node.looks == 1) == (state == "down"), "a link that is down carries nothing"


def test_queues_that_one_left_shut_who_was_killed_take_messages_again_when_the_next_stays() -> None:
    node = PlayedNode((0, 2), state="down")
    node.takes = False
    with pytest.raises(errors.ConflictError, match="2 from b to a"):
        empty(node, ["b"], node.told.append)  # type: ignore[arg-type]
    assert node.takes
    assert node.told == ["part", "stay"]


@pytest.mark.parametrize("looks", [0, 3])
def test_dead_messages_of_a_link_are_not_deleted_without_a_word(looks: int) -> None:
    node = PlayedNode((2, 0), (0, 0))
    node.dead, node.dead_from = 7, looks
    with pytest.raises(errors.ConflictError, match="7 on b in '#link/a/dmq'"):
        empty(node, ["b"], node.told.append)  # type: ignore[arg-type]
    assert node.takes
    assert node.told == (["part", "stay"] if looks else []), (
        "nobody is refused anything if it is known before"
    )


def test_a_neighbour_takes_messages_again_also_if_the_node_that_wanted_to_leave_answers_no_more() -> None:
    class Gone(PlayedNode):
        def call(self, operation: str, **given: Any) -> Any:
            if self.told:
                raise errors.error_for(errors.CONNECT_FAILED, "the controller is started again")
            return super().call(operation, **given)

    node = Gone((0, 2))
    with pytest.raises(errors.ConnectionLostError, match="started again"):
        empty(node, ["b"], node.told.append)  # type: ignore[arg-type]
    assert node.told == ["part", "stay"]


def test_a_neighbour_that_is_not_heard_holds_nobody_up_for_ever() -> None:
    node = PlayedNode((0, 0), heard_s=60.0)
    empty(node, ["b"], node.told.append)  # type: ignore[arg-type]
    assert node.told == ["part"]


def test_messages_wait_in_the_queues_of_both_ends() -> None:
    rows = [("a", "b", 0, 0), ("b", "a", 3, 1), ("a", "c", None, None), ("b", "c", 9, 9), ("a", "d", 0, 2)]
    names = ("node", "neighbour", "spooled_messages", "retry_messages")
    status = {"node": "a", "links": [dict(zip(names, row, strict=True)) for row in rows]}
    assert waiting_messages(status) == [("b", "a", 4), ("a", "d", 2)]
