"""Every argument of every request in every wrong type, and every way to write a selector wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from tests.integration.attacked_spool import AttackedSpool
from tests.integration.raw_guaranteed import RawGuaranteed, RawProducer
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unharmed")]

QUEUE = "odd/a"
#: Operation -> its arguments, each of the right type; the first one is needed.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "producer.open": {"name": "odd", "window": 10, "resume": False},
    "producer.close": {"producer": 1, "forget": False},
    "stage.commit": {"stages": ["odd"], "sink": "odd", "batch": 1},
    "stage.abort": {"stages": ["odd"]},
    "endpoint.create": {
        "name": QUEUE,
        "kind": "queue",
        "durable": True,
        "attributes": {},
        "ignore_exists": True,
    },
    "endpoint.delete": {"name": QUEUE, "kind": "queue"},
    "endpoint.show": {"name": QUEUE, "kind": "queue"},
    "endpoint.subscribe": {"name": QUEUE, "filters": ["a"], "kind": "queue"},
    "endpoint.unsubscribe": {"name": QUEUE, "filters": ["a"], "kind": "queue"},
    "flow.bind": {
        "name": QUEUE,
        "kind": "queue",
        "browse": False,
        "selector": "a = 1",
        "messages": 1,
        "bytes": 1,
        "topic": "a",
        "temporary": False,
        "attributes": {},
        "active_indication": False,
        "no_local": False,
        "max_unacked": 1,
    },
    "flow.unbind": {"flow": 1},
}
#: A value of each type of MessagePack.
VALUES: dict[str, Any] = {
    "nil": None,
    "true": True,
    "number": 7,
    "negative": -7,
    "float": 1.5,
    "text": "text",
    "bytes": b"bytes",
    "array": [1],
    "map": {"a": 1},
    "map-of-numbers": {1: 2},
}
#: Types that are not wrong for an argument, by the type of its right value.
_RIGHT = {
    str: {"text"},
    bool: {"true"},
    int: {"number", "negative"},
    list: {"array"},
    dict: {"map"},
}
#: What may be left out may be nil.
_MAY_BE_NIL = {"selector", "topic", "max_unacked", "sink", "batch"}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedSpool]:
    with AttackedSpool(tmp_path_factory.mktemp("arguments")) as attacked:
        attacked.queue(QUEUE)
        yield attacked


@pytest.mark.parametrize("operation", ARGUMENTS)
def test_an_argument_of_another_type_is_refused_and_the_session_stays(
    attacked: AttackedSpool, client: RawGuaranteed, operation: str
) -> None:
    counted, wrong = attacked.errors(errors.INVALID_ARGUMENT), 0
    for name, right in ARGUMENTS[operation].items():
        for kind, value in VALUES.items():
            if kind in _RIGHT[type(right)] or (value is None and name in _MAY_BE_NIL):
                continue
            wrong += 1
            code, detail = client.request(operation, **{**ARGUMENTS[operation], name: value})
            assert code == errors.INVALID_ARGUMENT, (name, kind, code, detail)
            assert operation in detail
            assert name in detail
    attacked.expect_errors(errors.INVALID_ARGUMENT, counted + wrong)
    assert client.is_open()


@pytest.mark.parametrize("operation", ARGUMENTS)
def test_arguments_that_are_no_map_or_lack_the_needed_one_are_refused(
    client: RawGuaranteed, operation: str
) -> None:
    for value in VALUES.values():
        if isinstance(value, dict) and operation == "producer.open":
            continue  # It needs nothing.
        client.asked += 1
        client.send(b"Q", [client.asked, operation, value])
        assert client.answer(client.asked)[0] == errors.INVALID_ARGUMENT, value
    assert client.is_open()


#: Selector -> what its error names: the place, counted from 0, and what is there.
SELECTORS = {
    "a = ": "position 4",
    "a = = 1": "'=' at position 4",
    "a == 1": "'=' at position 3",
    "= 1": "'=' at position 0",
    "a = 1 AND": "position 9",
    "a = 1 b": "'b' at position 6",
    "(a = 1": "position 6",
    "a = 1)": "')' at position 5",
    "a IN ()": "')' at position 6",
    "a BETWEEN 1": "position 11",
    "a LIKE 5": "'5' at position 7",
    "a = 'open": "position 4",
    "a = 1\0": "'\\x00' at position 5",
    "a = 1 \u20ac": "position 6",
    "a LIKE 'x' ESCAPE 'yy'": "'yy'",
    "NOT": "position 3",
    "1 +": "position 3",
}


@pytest.mark.requirement("R142")
@pytest.mark.parametrize("selector", SELECTORS)
def test_the_error_of_a_selector_names_place_and_text(
    attacked: AttackedSpool, client: RawGuaranteed, selector: str
) -> None:
    counted = attacked.errors(errors.INVALID_SELECTOR)
    code, detail = client.request("flow.bind", name=QUEUE, selector=selector)
    assert code == errors.INVALID_SELECTOR, detail
    assert SELECTORS[selector] in detail
    assert "position" in detail
    attacked.expect_errors(errors.INVALID_SELECTOR, counted + 1)
    wait_until(lambda: attacked.counter(QUEUE, "bind_invalid_selector"), "the queue counts it too")


@pytest.mark.parametrize(
    "selector",
    [
        "(" * 2_000,
        "NOT " * 400 + "a",
        "-" * 1_900 + "1 = 1",
        "a = 1 OR " * 200 + "b = 2",
        "a LIKE '" + "%x" * 900 + "'",
        "a LIKE '" + "_%" * 900 + "y'",
        "9" * 1_500 + " = a",
        "a IN (" + ", ".join(f"'{n}'" for n in range(250)) + ")",
        "1e999999999 = a",
        "a" * 2_000,
    ],
    ids=["parentheses", "nots", "minuses", "ors", "likes", "likes-2", "digits", "in", "infinite", "name"],
)
def test_a_costly_selector_costs_its_flow_only(
    attacked: AttackedSpool, client: RawGuaranteed, selector: str
) -> None:
    queue = attacked.queue(access_type="non-exclusive")
    assert not any(RawProducer(client).fill(queue, *[b""] * 255))
    for _ in range(5):
        code, _ = client.request("flow.bind", name=queue, selector=selector, messages=300, bytes=1 << 20)
        assert code in (0, errors.INVALID_SELECTOR)
    assert client.is_open()
    attacked.expect_held(queue, 255)
