"""The trace context of a message: what is one, what is left out, and what is found without unpacking."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import Message
from angarium.trace_context import Contexts, TraceContext, context_of, is_tracestate, parse, sampled_in

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (GOOD, TraceContext(TRACE, SPAN, is_sampled=True)),
        (f"00-{TRACE}-{SPAN}-00", TraceContext(TRACE, SPAN, is_sampled=False)),
        (f"00-{TRACE}-{SPAN}-03", TraceContext(TRACE, SPAN, is_sampled=True)),
        (f"cc-{TRACE}-{SPAN}-01-what-is-new", TraceContext(TRACE, SPAN, is_sampled=True)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (GOOD.upper(), None),
        (GOOD + "\n", None),
        (f"{GOOD},{GOOD}", None),
        ("", None),
        (None, None),
        (5, None),
        ([GOOD], None),
    ],
)
def test_what_is_a_traceparent(value: object, expected: TraceContext | None) -> None:
    assert parse(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", True),
        ("tenant@system=a b, other=c", True),
        ("a=" + "x" * 511, False),
        (",".join(f"k{i}=v" for i in range(33)), False),
        ("A=b", False),
        ("a", False),
        ("a=\x00", False),
        ("", False),
        (b"a=b", False),
    ],
)
def test_what_is_a_tracestate(value: object, expected: bool) -> None:
    assert is_tracestate(value) is expected


@pytest.mark.parametrize(
    ("given_", "kept", "dropped"),
    [
        ({"a": 1}, {"a": 1}, 0),
        ({"traceparent": GOOD, "a": 1}, {"traceparent": GOOD, "a": 1}, 0),
        ({"traceparent": GOOD, "tracestate": "a=b"}, {"traceparent": GOOD, "tracestate": "a=b"}, 0),
        ({"traceparent": GOOD, "tracestate": "?"}, {"traceparent": GOOD}, 1),
        ({"traceparent": "?", "tracestate": "a=b", "a": 1}, {"a": 1}, 1),
        ({"traceparent": None, "a": 1}, {"a": 1}, 1),
        ({"tracestate": "a=b"}, {}, 1),
    ],
)
def test_what_is_malformed_is_left_out_and_counted(
    given_: dict[str, Any], kept: dict[str, Any], dropped: int
) -> None:
    contexts = Contexts()
    assert contexts.cleaned(given_) == kept
    assert contexts.dropped == dropped
    assert context_of(given_).items() <= kept.items()


def packed(**properties: Any) -> bytes:
    found = Message("a", properties=properties, correlation_id="c").row[4]
    assert found is not None
    return found


def test_a_sampled_context_is_found_in_packed_properties() -> None:
    expected = TraceContext(TRACE, SPAN, is_sampled=True)
    assert sampled_in(packed(a=1, traceparent=GOOD, z=b"\xff")) == expected
    assert sampled_in(packed(traceparent=f"00-{TRACE}-{SPAN}-00")) is None
    assert sampled_in(packed(traceparent=f"00-{'0' * 32}-{SPAN}-01")) is None
    assert sampled_in(packed(a=f"traceparent{GOOD}")) is None
    assert sampled_in(packed(traceparent=[GOOD])) is None


@given(value=st.text(max_size=80) | st.binary(max_size=80))
def test_no_value_breaks_who_looks(value: str | bytes) -> None:
    properties = {"traceparent": value, "tracestate": value}
    parse(value)
    Contexts().cleaned(dict(properties))
    sampled_in(packed(**properties))
