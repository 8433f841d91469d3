"""What a primary and its standby say to each other survives the way over a socket; what nobody says is refused."""

from __future__ import annotations

import pytest

from angarium_server.frames.frame import MalformedFrameError
from angarium_server.frames.shipping import AskSynced, ShipGroup
from storage.groups import Begun, Brought, Group, Past, Patch
from storage.shipping.encoding import frames_to_primary, frames_to_standby, from_primary, from_standby
from storage.shipping.receiving import Fresh, FromPrimary, Part
from storage.shipping.shipping import FromStandby, Here, Synced, TellTouched, TellTouchedBy
from storage.spool import Table

PAST = Past((Begun("a", 1), Begun("b", 7)), 9, 3)
TOUCHED = ((Table.BLOCKS, b"k"), (Table.META, b"m"))
CHANGES = [(Table.BLOCKS, b"k", b"value"), (Table.STATES, b"s", None)]

TO_STANDBY: list[FromPrimary] = [
    Group(7, "run", CHANGES),
    Patch(4, PAST, TOUCHED, tuple(CHANGES)),
    Fresh(),
    Part(CHANGES),
    Brought(None, PAST, ()),
    Brought(4, PAST, TOUCHED),
    TellTouched(4),
]
TO_PRIMARY: list[FromStandby] = [
    Here(PAST),
    Here(Past()),
    TellTouchedBy(4, TOUCHED),
    TellTouchedBy(4, None),
    Synced(9),
]


@pytest.mark.parametrize("message", TO_STANDBY, ids=lambda one: type(one).__name__)
def test_what_a_primary_says_arrives(message: FromPrimary) -> None:
    found = from_primary(frames_to_standby(message))
    assert type(found) is type(message)
    assert found == message
    if isinstance(found, Group):
        assert [type(table) for table, _, _ in found.changes] == [Table, Table], (
            "tables are looked up by identity"
        )


@pytest.mark.parametrize("message", TO_PRIMARY, ids=lambda one: type(one).__name__)
def test_what_a_standby_says_arrives(message: FromStandby) -> None:
    assert from_standby(frames_to_primary(message, "beta")) == message


def test_what_is_about_no_store_is_left_to_others() -> None:
    assert from_primary(AskSynced().frames()) is None


@pytest.mark.parametrize(
    "frames",
    [
        [ShipGroup.operation],
        [ShipGroup.operation, b"\xc1"],
        ShipGroup(1, "run").frames(),
        ShipGroup(1, "run").frames(b"\xc1"),
        ShipGroup(1, "run").frames(b"\x91\x93\x63\xc4\x00\xc0"),  # a table that no spool has
        ShipGroup(1, "run").frames(b"\x90", b"\x90"),
    ],
)
def test_what_nobody_says_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(MalformedFrameError):
        from_primary(frames)
