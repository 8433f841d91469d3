"""The frames that a link session has beside those of the client protocol: interest of nodes, and reports.

They go between nodes, so their bytes are those of docs/link-protocol.md for every version of it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from angarium import wire
from angarium_server.frames.frame import Frame, about

#: A pattern, and what a node wishes of it: bits.
Wish = tuple[str, Annotated[int, Meta(ge=0, le=4 << wire.WISH_DTO_SHIFT | 3)]]
_KIND = about("0: a part of the snapshot; 1: its last part; 2: changes")


class ExportsFrame(Frame):
    """What the router's node wants of its neighbour."""

    operation: ClassVar[bytes] = wire.EXPORTS
    direction: ClassVar[str] = "router to link"

    kind: Annotated[int, Meta(ge=0), _KIND]
    entries: Annotated[list[tuple[str, int]], about("`[pattern, wish]`, up to 1,000")]


class ImportsFrame(Frame):
    """The EXPORTS of the other side; IMPORTED answers it when the workers have the filters."""

    operation: ClassVar[bytes] = wire.IMPORTS
    direction: ClassVar[str] = "link to router"

    request: Annotated[int, Meta(ge=0, le=1 << 62), about("comes back in IMPORTED")]
    kind: Annotated[int, Meta(ge=wire.EXPORTS_SNAPSHOT, le=wire.EXPORTS_CHANGES), _KIND]
    entries: Annotated[
        list[Wish], Meta(max_length=wire.MAX_WISHES_PER_FRAME), about("`[pattern, wish]`, up to 1,000")
    ]


class ImportedFrame(Frame):
    """The wishes of an IMPORTS are in force."""

    operation: ClassVar[bytes] = wire.IMPORTED
    direction: ClassVar[str] = "router to link"

    request: Annotated[int, Meta(ge=0), about("that of the IMPORTS")]


class PeersFrame(Frame):
    """The report of a controller to those of its neighbours."""

    operation: ClassVar[bytes] = wire.PEERS
    direction: ClassVar[str] = "both"

    report: Annotated[bytes, Meta(max_length=wire.MAX_REPORT_BYTES), about("up to 128 KiB, see below")]


INTEREST: Final[tuple[type[Frame], ...]] = (ExportsFrame, ImportsFrame, ImportedFrame)
REPORTS: Final[tuple[type[Frame], ...]] = (PeersFrame,)
FRAMES: Final = INTEREST + REPORTS
