"""Requests about endpoints, and requests in general: what is asked, and what the answers mean."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium.client.consuming.flow_options import FlowOptions
from angarium.client.guaranteed_messaging import GuaranteedMessaging
from angarium.client.protocol.guaranteed import OPERATIONS_PENDING_MAX
from tests.unit.angarium.spoken_node import SpokenNode, open_flow, run

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Calls(GuaranteedMessaging):
    """The calls of a client that talks to a spoken node."""

    def __init__(self, node: SpokenNode, timeout_s: float = 5.0) -> None:
        self._guaranteed = node.guaranteed
        self._timeout_s = timeout_s


async def call(node: SpokenNode, work: Coroutine[Any, Any, Any]) -> Any:
    task = asyncio.ensure_future(work)
    await node.until(task.done)
    return task.result()


@pytest.mark.requirement("R100", "R108", "R109")
def test_a_queue_is_created_with_its_attributes_and_subscriptions() -> None:
    async def test() -> None:
        node = SpokenNode()
        node.answers = {
            "endpoint.create": {"name": "q", "created": True},
        }
        queue = Calls(node).create_queue(
            "q", ignore_exists=True, subscriptions=["a/>", "!a/b"], permission="consume"
        )
        assert await call(node, queue) is True
        assert node.asked == [
            (
                "endpoint.create",
                {
                    "kind": "queue",
                    "name": "q",
                    "durable": True,
                    "attributes": {"permission": "consume", "subscriptions": ["a/>", "!a/b"]},
                    "ignore_exists": True,
                },
            ),
        ]

    run(test())


def test_a_queue_that_was_there_gets_the_subscriptions_that_it_lacks() -> None:
    async def test() -> None:
        node = SpokenNode()
        node.answers = {
            "endpoint.create": {"name": "q", "created": False},
            "endpoint.subscribe": [None, None],
        }
        queue = Calls(node).create_queue("q", ignore_exists=True, subscriptions=["a/>", "!a/b"])
        assert await call(node, queue) is False
        assert node.asked[1:] == [("endpoint.subscribe", {"name": "q", "filters": ["a/>", "!a/b"]})]

    run(test())


def test_a_lone_filter_of_a_queue_is_one_filter_and_not_its_characters() -> None:
    """`>` is one of them, and a queue with it would attract everything."""

    async def test() -> None:
        node = SpokenNode()
        node.answers = {"endpoint.create": {"name": "q", "created": True}}
        assert await call(node, Calls(node).create_queue("q", subscriptions="orders/>")) is True
        [(_, asked)] = node.asked
        assert asked["attributes"] == {"subscriptions": ["orders/>"]}

    run(test())
    options = FlowOptions(name="q", temporary=True, subscriptions="orders/>", timeout_s=5.0)
    assert options.arguments("q")["attributes"] == {"subscriptions": ["orders/>"]}


@pytest.mark.parametrize("filters", [b"orders/>", ["a", None], 7, None])
def test_what_is_no_filter_is_refused_with_what_it_is(filters: Any) -> None:
    async def test() -> None:
        node = SpokenNode()
        with pytest.raises(
            errors.InvalidRequestError, match="a filter is text, and filters are a list of them"
        ):
            await call(node, Calls(node).create_queue("q", subscriptions=filters))
        with pytest.raises(
            errors.InvalidRequestError, match="a filter is text, and filters are a list of them"
        ):
            await call(node, Calls(node).add_queue_subscription("q", filters))
        assert node.asked == []

    run(test())


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("prefetch", "; did you mean 'window'?"),
        ("timeout", "; did you mean 'timeout_s'?"),
        ("subscription", "; did you mean 'subscriptions'?"),
        ("browse", ""),
        ("name", ""),
    ],
)
def test_consume_refuses_an_argument_that_it_does_not_have_as_its_own(name: str, question: str) -> None:
    async def test() -> None:
        with pytest.raises(TypeError) as caught:
            Calls(SpokenNode()).consume("q", **{name: 5})  # type: ignore[arg-type]
        assert str(caught.value) == f"consume() got an unexpected keyword argument {name!r}{question}"

    run(test())


def test_a_topic_endpoint_is_created_and_both_are_deleted_and_shown() -> None:
    async def test() -> None:
        node = SpokenNode()
        calls = Calls(node)
        node.answers = {
            "endpoint.create": {"name": "t", "created": False},
            "endpoint.delete": None,
            "endpoint.show": {"name": "t", "messages": 5},
        }
        assert await call(node, calls.create_topic_endpoint("t")) is False
        await call(node, calls.delete_queue("q"))
        await call(node, calls.delete_topic_endpoint("t"))
        assert (await call(node, calls.show_queue("q")))["messages"] == 5
        await call(node, calls.show_topic_endpoint("t"))
        assert [(operation, arguments["kind"]) for operation, arguments in node.asked] == [
            ("endpoint.create", "topic-endpoint"),
            ("endpoint.delete", "queue"),
            ("endpoint.delete", "topic-endpoint"),
            ("endpoint.show", "queue"),
            ("endpoint.show", "topic-endpoint"),
        ]

    run(test())


@pytest.mark.requirement("R120")
def test_the_first_filter_that_is_refused_is_told() -> None:
    async def test() -> None:
        node = SpokenNode()
        refused = [None, [errors.SHARED_ON_ENDPOINT, "#share/x/a"], [errors.INVALID_FILTER, ""]]
        node.answers = {"endpoint.subscribe": refused, "endpoint.unsubscribe": [None]}
        with pytest.raises(errors.ForbiddenError, match="40316"):
            await call(node, Calls(node).add_queue_subscription("q", "a", "#share/x/a", ""))
        await call(node, Calls(node).remove_queue_subscription("q", "a"))

    run(test())


def test_many_filters_go_in_several_requests() -> None:
    async def test() -> None:
        node = SpokenNode()
        node.answers = {"endpoint.subscribe": lambda arguments: [None] * len(arguments["filters"])}
        await call(node, Calls(node).add_queue_subscription("q", *[f"a/{n}" for n in range(600)]))
        assert [len(arguments["filters"]) for _, arguments in node.asked] == [256, 256, 88]

    run(test())


@pytest.mark.parametrize("value", [[None], [None, [1]], [None, ["40005", ""]], {}, None])
def test_answers_for_another_number_of_filters_close_the_session(value: Any) -> None:
    async def test() -> None:
        node = SpokenNode()
        node.answers = {"endpoint.subscribe": value}
        with pytest.raises(errors.ConnectionLostError):
            await call(node, Calls(node).add_queue_subscription("q", "a", "b"))
        assert node.closed == [errors.MALFORMED_FRAME]

    run(test())


def test_a_refusal_is_raised_with_its_code() -> None:
    async def test() -> None:
        node = SpokenNode()
        node.answers = {"endpoint.create": errors.error_for(errors.ENDPOINT_CREATE_DENIED, "q")}
        with pytest.raises(errors.ForbiddenError, match=r"40314.*q"):
            await call(node, Calls(node).create_queue("q"))

    run(test())


# Requests and connections.


def test_a_call_waits_for_a_connection() -> None:
    async def test() -> None:
        node = SpokenNode()
        node.answers = {"endpoint.delete": None}
        node.lose()
        task = asyncio.ensure_future(Calls(node).delete_queue("q"))
        await node.steps()
        assert not task.done()
        node.connect()
        await node.until(task.done)
        assert task.exception() is None

    run(test())


def test_a_call_is_not_waited_for_longer_than_asked() -> None:
    async def test() -> None:
        for is_connected, told in ((True, "'angarium status' shows"), (False, "no connection")):
            node = SpokenNode()
            if not is_connected:
                node.lose()
            with pytest.raises(errors.TimeoutExpiredError, match=f"40801: .*{told}"):
                await Calls(node, timeout_s=0.01).delete_queue("q")

    run(test())


def test_an_answer_that_nobody_waits_for_any_more_is_fine() -> None:
    async def test() -> None:
        node = SpokenNode()
        with pytest.raises(errors.TimeoutExpiredError):
            await Calls(node, timeout_s=0.01).delete_queue("q")
        node.answer(1, None)
        assert node.closed == []

    run(test())


def test_what_was_asked_when_the_connection_was_lost_may_or_may_not_be_done() -> None:
    async def test() -> None:
        node = SpokenNode()
        task = asyncio.ensure_future(Calls(node).delete_queue("q"))
        await node.steps()
        node.lose()
        await node.steps()
        with pytest.raises(errors.ConnectionLostError, match="60001"):
            task.result()

    run(test())


def test_requests_on_their_way_are_bounded() -> None:
    async def test() -> None:
        node = SpokenNode()
        tasks = [asyncio.ensure_future(Calls(node).delete_queue(f"q{n}")) for n in range(200)]
        await node.steps()
        assert len(node.sent(wire.REQUEST)) == OPERATIONS_PENDING_MAX
        node.answer(1, None)
        assert len(node.sent(wire.REQUEST)) == 1
        for task in tasks:
            task.cancel()

    run(test())


def test_when_the_client_is_closed_everybody_who_waits_knows() -> None:
    async def test() -> None:
        node = SpokenNode()
        asked = asyncio.ensure_future(Calls(node).delete_queue("q"))
        await node.steps()
        node.guaranteed.close(errors.error_for(errors.CLIENT_CLOSED), None)
        later = asyncio.ensure_future(Calls(node).delete_queue("q"))
        await node.steps()
        assert [type(task.exception()) for task in (asked, later)] == [errors.ConnectionLostError] * 2

    run(test())


# Ends that nobody waits for.


def test_what_waits_for_its_turn_leaves_when_ends_that_nobody_waits_for_are_answered() -> None:
    async def test() -> None:
        node = SpokenNode()
        for _ in range(OPERATIONS_PENDING_MAX):
            await open_flow(node)
        for flow in node.flows:
            flow._binding.abandon()
        waiting = asyncio.ensure_future(Calls(node).delete_queue("q"))
        await node.steps()
        node.answers |= {"flow.unbind": {}, "endpoint.delete": {}}
        await node.steps()
        assert waiting.done()

    run(test())


@pytest.mark.parametrize("is_dropped", [False, True])
def test_the_end_of_a_flow_is_told_when_other_requests_were_answered(is_dropped: bool) -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node)
        requests = [
            asyncio.ensure_future(Calls(node).delete_queue("q")) for _ in range(OPERATIONS_PENDING_MAX)
        ]
        await node.steps()
        if is_dropped:
            flow._binding.abandon()
        else:
            await flow.close(timeout_s=0.01)
        node.answers |= {"endpoint.delete": {}, "flow.unbind": {}}
        await node.steps(10)
        assert all(request.done() for request in requests)
        assert node.asked[-1] == ("flow.unbind", {"flow": 1})

    run(test())


@pytest.mark.parametrize("wrong", [object(), 1 << 70, "\ud800"])
def test_an_argument_that_cannot_be_sent_is_refused_and_harms_nobody(wrong: Any) -> None:
    async def test() -> None:
        node = SpokenNode()
        client = Calls(node)
        for _ in range(OPERATIONS_PENDING_MAX):
            with pytest.raises(errors.InvalidRequestError, match=r"endpoint\.create"):
                await client.create_queue("q", max_spool_usage_mb=wrong)
        others = [asyncio.ensure_future(client.delete_queue("q")) for _ in range(OPERATIONS_PENDING_MAX)]
        waiting = asyncio.ensure_future(client.create_queue("q", max_spool_usage_mb=wrong))
        await node.steps()
        node.answers["endpoint.delete"] = {}
        await node.steps(10)
        assert all(other.done() for other in others)
        assert isinstance(waiting.exception(), errors.InvalidRequestError)

    run(test())
