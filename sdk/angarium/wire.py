"""Frames: the operations of the protocols and how headers are packed and checked.

What goes over a socket is a ZeroMQ multipart message: one byte that names the operation, one MessagePack
header, and for some operations batches of rows. `docs/protocol.md` describes the client protocol for people
who write another client; `docs/node-protocol.md` the one between router and workers. This module knows both
and does no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgpack

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

PROTOCOL_VERSION: Final = 1

# Operations of the client protocol, client to router.
HELLO: Final = b"H"
JOIN: Final = b"L"
PUBLISH: Final = b"P"
SUBSCRIBE: Final = b"S"
UNSUBSCRIBE: Final = b"U"
CREDIT: Final = b"C"
REQUEST: Final = b"Q"
FLOW_CREDIT: Final = b"F"
SETTLE: Final = b"E"
BYE: Final = b"B"
IMPORTS: Final = b"Y"
COUNTED: Final = b"+"
# Both ways.
ATTACHED: Final = b"@"
PING: Final = b"K"
PONG: Final = b"k"
PEERS: Final = b"O"
# Router to client.
WELCOME: Final = b"W"
JOINED: Final = b"g"
SUBACK: Final = b"A"
DELIVER: Final = b"D"
RETIRED: Final = b"R"
NOTICE: Final = b"N"
TABLE: Final = b"T"
ANSWER: Final = b"q"
ACKED: Final = b"J"
MESSAGES: Final = b"M"
INDICATION: Final = b"I"
CLOSED: Final = b"X"
EXPORTS: Final = b"V"
IMPORTED: Final = b"Z"
RIGHTS: Final = b"="
COSTLY: Final = b"$"
ALONE: Final = b"%"

# Operations between router and workers: worker to router.
READY: Final = b"y"
CONFIRM: Final = b"c"
RESULT: Final = b"r"
HOME: Final = b"h"
LANES_CONFIRM: Final = b"u"
COMMITTED: Final = b"d"
FLOW_MESSAGES: Final = b"M"
FLOW_EVENT: Final = b"I"
RECORDS: Final = b"G"
MOVE: Final = b"v"
RETIRE: Final = b"x"
LEASED: Final = b"o"
WORK: Final = b"w"
SPOOL_FAILED: Final = b"z"
SETS: Final = b"b"
# Both ways: several messages that leave together.
BUNDLE: Final = b"p"
# Router to worker.
START: Final = b"s"
FILTERS: Final = b"f"
RULES: Final = b"a"
MATCH: Final = b"m"
LANES: Final = b"e"
STORE: Final = b"t"
FLOW: Final = b"l"
GATHER: Final = b"g"
MOVED: Final = b"j"
LEASE: Final = b"i"
ALLOWANCE: Final = b"n"

# Row: [index, topic, flags, meta, properties, payload].
ROW_INDEX: Final = 0
ROW_TOPIC: Final = 1
ROW_FLAGS: Final = 2
ROW_META: Final = 3
ROW_PROPERTIES: Final = 4
ROW_PAYLOAD: Final = 5

# Flags of a row.
FLAG_MODE: Final = 0b0000_0011  # 0 direct, 1 persistent, 2 non-persistent
FLAG_COS: Final = 0b0000_1100  # class of service - 1, shifted by COS_SHIFT
FLAG_DTO: Final = 0b0001_0000
FLAG_ELIDING: Final = 0b0010_0000
FLAG_DMQ_ELIGIBLE: Final = 0b0100_0000
FLAG_REPLY: Final = 0b1000_0000
FLAG_RETAIN: Final = 0b1_0000_0000  # the node keeps it until the next one of its topic
FLAGS_MAX: Final = 0b1_1111_1111
FLAG_RETAINED: Final = 0b10_0000_0000  # never on the wire: a client has read it from what is retained
COS_SHIFT: Final = 2
MODE_DIRECT: Final = 0
MODE_PERSISTENT: Final = 1
MODE_NON_PERSISTENT: Final = 2

# Flags of a subscription in SUBSCRIBE and UNSUBSCRIBE.
SUBSCRIBE_DELIVER_ALWAYS: Final = 1

# What a frame of EXPORTS or IMPORTS is.
EXPORTS_SNAPSHOT: Final = 0  # a part of all there is
EXPORTS_COMPLETE: Final = 1  # the snapshot is complete
EXPORTS_CHANGES: Final = 2

# What a node wants of its neighbours, per pattern; 0 is nothing any more.
WISH_DELIVER_ALWAYS: Final = 1
WISH_ENDPOINT: Final = 2
WISH_DTO_SHIFT: Final = (
    2  # from here on the best network priority, 1 to 4, of those who take part; 0 for none
)

# Which messages a MATCH has.
MATCH_DIRECT: Final = 0
MATCH_GUARANTEED: Final = 1
MATCH_AS_DIRECT: Final = 2  # of any mode, to be treated as direct ones: they came over a link
MATCH_TRAILS: Final = 4  # added if they may say where they have been: they come from a link or a bridge
MATCH_REPORT: Final = 8  # added if direct ones that match nothing are to be reported by their topics

# What a worker is to tell of the topics of a MATCH.
LEARN_NOTHING: Final = 0
LEARN_ALL: Final = 1
LEARN_FEW: Final = 2  # nothing if there are more than FEW_TOPICS_MAX

#: Topics that travel with a batch over a link, so that it need not be opened to know where it goes.
FEW_TOPICS_MAX: Final = 64

# Flags in the head of DELIVER.
DELIVER_DISCARD_INDICATION: Final = 1
DELIVER_UNSORTED: Final = 2

# Classes in the head of a result frame: which classes of service, and whether eliding-eligible rows, are
# inside.
CLASS_COS1: Final = 1
CLASS_COS2: Final = 2
CLASS_COS3: Final = 4
CLASS_ELIDING: Final = 8
CLASS_DTO: Final = 16
CLASS_RETAIN: Final = 32

# Kinds of filters that the router tells a worker.
KIND_PLAIN: Final = 0
KIND_DELIVER_ALWAYS: Final = 1
KIND_SHARED: Final = 2
KIND_ENDPOINT: Final = 3
KIND_EXCEPTION: Final = 4
KIND_RETAINED: Final = 5  # every message with FLAG_RETAIN, whatever its topic

# What a consumer says of a message (SETTLE).
OUTCOME_ACCEPTED: Final = 0
#: It goes back as if it had never been delivered: nobody has seen it.
OUTCOME_RELEASED: Final = 1
OUTCOME_FAILED: Final = 2
OUTCOME_REJECTED: Final = 3

# What happened to a flow (INDICATION).
FLOW_CLOSED: Final = 0
FLOW_ACTIVE: Final = 1
FLOW_INACTIVE: Final = 2
FLOW_PARTITIONS: Final = 3
FLOW_SETTLE_REFUSED: Final = 4
#: Partitions are to move to another flow: nothing more of them comes; told to those whose HELLO says `leaving`.
FLOW_LEAVING: Final = 5

#: A lane is one partition of an endpoint at its home; an endpoint without partitions has one, number 0.
LANE_BITS: Final = 10
#: Partitions of one queue.
MAX_PARTITIONS: Final = 1_000
#: Producers of the node itself: they carry moved messages, one per lane.
INTERNAL_PRODUCER: Final = 1 << 62
#: What a spooled message costs besides payload and properties, in the account of the quotas.
SPOOL_OVERHEAD_BYTES: Final = 64
#: A spool file takes messages until it holds so many bytes (R181); an accounting number, not a file on disk.
SPOOL_FILE_BYTES: Final = 8_000_000
#: Topic to which a message for one queue is published.
QUEUE_TOPIC_PREFIX: Final = "#P2P/QUE/"

#: A header is small by construction; what is larger is an attack or a fault. SUBSCRIBE may carry many
#: filters.
MAX_HEADER_BYTES: Final = 1 << 20
#: Rows in one batch. The router partitions unopened batches of others, so one batch bounds one step of work.
MAX_BATCH_ROWS: Final = 10_000
#: Filters in one SUBSCRIBE or UNSUBSCRIBE.
MAX_FILTERS_PER_REQUEST: Final = 256
#: Ranges in one SETTLE: router and home take about a millisecond for so many.
MAX_RANGES_PER_SETTLE: Final = 4_096
#: Patterns in one EXPORTS or IMPORTS: a few milliseconds of work for router and workers, and below MAX_HEADER_BYTES.
MAX_WISHES_PER_FRAME: Final = 1_000
#: The report of a controller in one PEERS: a few hundred links, and far below MAX_HEADER_BYTES.
MAX_REPORT_BYTES: Final = 128 << 10
#: The queue of each Message VPN that keeps the newest message of each topic that was published with FLAG_RETAIN.
RETAINED_QUEUE: Final = "#retained"
#: The username of the sessions of links, and what their client names, and the queues of links, begin with.
LINK_USERNAME: Final = "#link"
LINK_NAME_PREFIX: Final = "#link/"
#: Behind the name of the queue of a link: what the neighbour refused once and will be asked again, and what it refused
#: for good.
LINK_RETRY_SUFFIX: Final = "/retry"
LINK_DMQ_SUFFIX: Final = "/dmq"
#: The username of the sessions of bridges with their own router, and what their client names everywhere begin with.
BRIDGE_USERNAME: Final = "#bridge"
BRIDGE_NAME_PREFIX: Final = "#bridge/"
#: The username of the sessions of gateways, and what their client names begin with.
GATEWAY_USERNAME: Final = "#gateway"
GATEWAY_NAME_PREFIX: Final = "#gateway/"
#: What the names of the queues begin with that keep the sessions of MQTT clients.
SESSION_QUEUE_PREFIX: Final = "#mqtt/"
#: And of those that the members of a shared subscription of MQTT take from, which is no session's: its name has no `/`.
SHARED_QUEUE_PREFIX: Final = "#mqtt/$share/"
#: Bytes of the number of an attached client, behind the operation `ATTACHED`.
ATTACHED_NUMBER_BYTES: Final = 8
#: The name of a Message VPN has at most so many.
VPN_CHARACTERS_MAX: Final = 32
#: Bridges that a message may cross, however high the limit of a bridge is set.
HOPS_MAX: Final = 255
#: Bytes of direct messages that a link may have under way in each direction: they fill a path of 200 ms at 600 MB/s.
LINK_BYTES: Final = 128 << 20
#: Guaranteed messages of a link that its neighbour has not acknowledged, and their bytes: a path of 200 ms at 300,000
#: messages/s, or 150 MB/s. They are held in memory on both sides, and come again after a break.
LINK_WINDOW: Final = 65_536
LINK_WINDOW_BYTES: Final = 32 << 20
#: Messages of a producer that may be unacknowledged, and of a stage: what is published for a commit
#: later is in no hurry, and a round of 2,000 messages costs a node a fifth of what rounds of 127 do.
PRODUCER_WINDOW_MAX: Final = 255
STAGE_WINDOW_MAX: Final = 4_096

#: How MessagePack begins natural numbers that do not fit into that byte, and how many bytes follow.
_INTEGER_BYTES: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def pack(value: Any) -> bytes:
    """Pack a header or a batch of rows."""
    packed: bytes = _pack(value)
    return packed


def unpack(data: bytes | memoryview) -> Any:
    """Unpack trusted data of another process of this node.

    Raises:
        InvalidRequestError: it is no MessagePack (40001).
    """
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise errors.InvalidRequestError(errors.MALFORMED_FRAME, f"not MessagePack: {error}") from None


def unpack_header(data: bytes) -> Any:
    """Unpack a header that a peer sent, with a bound on its size.

    Raises:
        InvalidRequestError: it is too large or no MessagePack (40001).
    """
    if len(data) > MAX_HEADER_BYTES:
        detail = f"a header of {len(data)} bytes, the limit is {MAX_HEADER_BYTES}"
        raise errors.InvalidRequestError(errors.MALFORMED_FRAME, detail)
    return unpack(data)


def decode_header(decode: Callable[[bytes], _T], data: bytes) -> _T:
    """Decode a header that a peer sent by its types, so that nothing but what it may hold is ever built.

    Raises:
        InvalidRequestError: it is too large or of another shape (40001).
    """
    if len(data) > MAX_HEADER_BYTES:
        detail = f"a header of {len(data)} bytes, the limit is {MAX_HEADER_BYTES}"
        raise errors.InvalidRequestError(errors.MALFORMED_FRAME, detail)
    try:
        return decode(data)
    except (ValueError, RecursionError) as error:
        raise errors.InvalidRequestError(errors.MALFORMED_FRAME, str(error)) from None


def row_index(row: bytes) -> int:
    """Give the index of a packed row without opening it."""
    first = row[1]
    size = _INTEGER_BYTES.get(first)
    return first if size is None else int.from_bytes(row[2 : 2 + size], "big")


def array_length(batch: bytes) -> int:
    """Give the length that the head of a packed array announces; -1 if it is no array."""
    first = batch[0] if batch else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F
    if first == 0xDC:
        return int.from_bytes(batch[1:3], "big")
    return int.from_bytes(batch[1:5], "big") if first == 0xDD else -1


def array_head(rows: int) -> bytes:
    """Give the MessagePack head of an array, so that packed rows can be joined without packing them again."""
    if rows < 16:
        return bytes((0x90 | rows,))
    if rows < 1 << 16:
        return b"\xdc" + rows.to_bytes(2, "big")
    return b"\xdd" + rows.to_bytes(4, "big")


def array_head_size(rows: int) -> int:
    """Give the length in bytes of the canonical array head of a batch with so many rows."""
    if rows < 16:
        return 1
    return 3 if rows < 1 << 16 else 5


#: A small batch is sooner copied once more than looked at where it is.
_COPIED_BYTES_MAX: Final = 1_024


def join_batches(batches: list[tuple[int, bytes]]) -> bytes:
    """Join batches, given as (rows, canonical batch), into one batch without opening them."""
    total = sum([rows for rows, _ in batches])
    parts = [
        batch[1:]
        if rows < 16 and len(batch) <= _COPIED_BYTES_MAX  # there may be thousands
        else memoryview(batch)[array_head_size(rows) :]
        for rows, batch in batches
    ]
    return b"".join([array_head(total), *parts])


def join_rows(rows: list[bytes]) -> bytes:
    """Make a batch of rows that are packed already."""
    return array_head(len(rows)) + b"".join(rows)


def malformed(detail: str) -> errors.AngariumError:
    """Give the error of a frame that breaks the protocol."""
    return errors.error_for(errors.MALFORMED_FRAME, detail)


def header(decode: Callable[[bytes], Any], frames: list[bytes], *, parts: int | None) -> Any:
    """Decode the header of a peer, with its types, its size and the number of batches behind it checked.

    Args:
        decode: a typed decoder.
        frames: the whole multipart.
        parts: how many batches there must be, or None if the header says it.

    Raises:
        InvalidRequestError: it is of another shape (40001).
    """
    if parts is not None and len(frames) - 2 != parts:
        raise malformed(f"{len(frames)} frames behind {frames[0]!r}")
    return decode_header(decode, frames[1])
