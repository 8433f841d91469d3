"""Frames between processes: what their bytes are, and what happens to a header of another shape."""

from __future__ import annotations

import pytest

from angarium import wire
from angarium_server.frames import control, homes, links, matching
from angarium_server.frames.frame import Frame, MalformedFrameError, decoder, read

pytestmark = pytest.mark.requirement("R211")

KINDS = (*matching.FRAMES, *homes.FRAMES, *links.FRAMES)


@pytest.mark.parametrize(
    ("frame", "header"),
    [
        (links.ExportsFrame(1, [("a/>", 4)]), [1, [["a/>", 4]]]),
        (links.ImportsFrame(7, 2, [("a", 0)]), [7, 2, [["a", 0]]]),
        (links.ImportedFrame(7), [7]),
        (links.PeersFrame(b"report"), [b"report"]),
    ],
)
def test_what_goes_to_other_nodes_has_the_bytes_that_the_page_names(
    frame: Frame, header: list[object]
) -> None:
    assert frame.frames() == [frame.operation, wire.pack(header)]


def test_control_frames_begin_with_their_names() -> None:
    assert wire.unpack(control.Scale(3).packed()) == ["scale", 3]
    assert wire.unpack(control.StopNode().packed()) == ["stop"]
    assert wire.unpack(control.Reply(1, ok=False, value=[40001, ""]).packed()) == [
        "reply",
        1,
        False,
        [40001, ""],
    ]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("header", [b"", b"\xc1", b"\x80", b"\x90", wire.pack(["x"] * 30), b"\x91" * 50_000])
def test_a_header_of_another_shape_is_a_typed_error(kind: type[Frame], header: bytes) -> None:
    with pytest.raises(MalformedFrameError, match="operation"):
        read(decoder(kind), [kind.operation, header])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_without_a_header_is_a_typed_error(kind: type[Frame]) -> None:
    with pytest.raises(MalformedFrameError):
        read(decoder(kind), [kind.operation])


def test_operations_of_one_direction_are_distinct() -> None:
    operations = [(kind.direction, kind.operation) for kind in (*matching.FRAMES, *homes.FRAMES)]
    assert len(operations) == len(dict.fromkeys(operations))
