"""What a round gives to a session, before it is known how it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from router.sessions.queues import Bundle


class Delivery(msgspec.Struct, eq=False):
    """What one round gives to one session, or to many of them: built once, shared by all."""

    bundles: list[Bundle]
    rows: int
    #: Bytes of its batches.
    size: int
    #: Whether the number of its rows is all there is to say of it.
    is_plain: bool
    #: Whether it shares a frame with what else leaves for a client.
    is_small: bool
    #: The DELIVER as it goes out when nothing was dropped before it, to a client and to a neighbour; None before the
    #: first of them gets it.
    frames: list[bytes] | None = None
    link_frames: list[bytes] | None = None
