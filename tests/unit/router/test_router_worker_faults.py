"""A worker that sends what no worker sends is ended and started again; everybody else goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium_server.frames.frame import encode
from angarium_server.frames.matching import Fault, PlainHead, Result
from router.ground.effects import SendWorker

if TYPE_CHECKING:
    from tests.unit.router.wired_node import WiredNode

pytestmark = pytest.mark.requirement("R211")


def _result(node: WiredNode, **changes: Any) -> list[bytes]:
    """Give a RESULT for the MATCH that waits at the worker, with something wrong."""
    (match,) = [frames for frames in node.paused[0] if frames[0] == wire.MATCH]
    reference = wire.unpack(match[1])[1]
    fields: dict[str, Any] = {"defs": [], "retired": [], "plain": [], "choice": [], "unmatched": 0}
    fields |= {"refused": [], "learned": [], "endpoints": [], **changes}
    return Result(node.workers[0].incarnation, reference, **fields).frames()


def _faulty(node: WiredNode) -> dict[str, list[bytes]]:
    whole = _result(node)
    return {
        "unknown operation": [b"?", wire.pack([node.workers[0].incarnation])],
        "no header": [wire.RESULT],
        "no array": [wire.RESULT, wire.pack({})],
        "too short": [wire.RESULT, wire.pack(wire.unpack(whole[1])[:-1])],
        "too long": [wire.RESULT, wire.pack([*wire.unpack(whole[1]), 1])],
        "wrong type": [wire.CONFIRM, wire.pack([node.workers[0].incarnation, "1"])],
        "a set that was never defined": _result(node, plain=[PlainHead(99, 1, 1, 1)]),
        "a body without heads": [*whole, encode([b"?"])],
        "a body that is none": [*whole, b"?"],
        "in a bundle": [wire.BUNDLE, wire.pack([[[wire.WORK, b"?"]]])],
    }


@pytest.mark.parametrize(
    "name",
    [
        "unknown operation",
        "no header",
        "no array",
        "too short",
        "too long",
        "wrong type",
        "a set that was never defined",
        "a body without heads",
        "a body that is none",
        "in a bundle",
    ],
)
def test_a_worker_that_sends_nonsense_is_ended_and_its_successor_serves(make_node: Any, name: str) -> None:
    node = make_node(1, fast_path_topics_max=0)
    subscriber, publisher = node.client(), node.client()
    subscriber.subscribe("a")
    node.pause(0)
    publisher.publish("a", flush=True)
    faulty = _faulty(node)[name]
    worker = node.workers[0]
    node.router.worker_frames(b"w0.%d" % worker.incarnation, faulty, node.now)
    told = [one.frames for one in node.router.out.effects if isinstance(one, SendWorker)]
    assert [frames[0] for frames in told] == [Fault.operation]
    assert worker.handle(told[0], node.now) == []
    assert worker.found_faulty
    node.settle()
    (event,) = [event for event in node.events if event["event"] == "SYSTEM_WORKER_FAULT"]
    assert (event["index"], event["severity"]) == (0, "error")
    operation, notice = publisher.take()
    assert (operation, notice[0]) == (wire.NOTICE, errors.SHARD_UNAVAILABLE)
    node.kill_worker(0)
    node.start_worker(0)
    publisher.publish("a")
    assert len(subscriber.rows()) == 1
    node.validate()


def test_what_a_dead_worker_sent_last_is_no_fault_of_its_successor(make_node: Any) -> None:
    node = make_node(1)
    before = node.workers[0].incarnation
    node.kill_worker(0)
    node.start_worker(0)
    node.router.worker_frames(b"w0.%d" % before, [wire.RESULT, b"?"], node.now)
    node.settle()
    assert [event for event in node.events if event["event"] == "SYSTEM_WORKER_FAULT"] == []
    assert not node.workers[0].found_faulty


def test_a_worker_believes_a_fault_of_its_router_only(make_node: Any) -> None:
    node = make_node(1)
    worker = node.workers[0]
    worker.handle(Fault(worker.router_incarnation + 1, "text").frames(), node.now)
    assert not worker.found_faulty
