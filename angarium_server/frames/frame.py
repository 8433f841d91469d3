"""What a frame is: an operation of one byte, a header that a struct describes, and for some operations batches.

Both ends use the struct, so a field is added in one place, the type checker sees who sets and who reads it, and a
header of another shape is refused while it is decoded. `scripts/docs` writes the tables of docs/node-protocol.md from
the structs: a field is described by `about`, the frame by its docstring.

A header is a MessagePack array of the fields in their order; a field with a default may be left out at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar, dataclass_transform

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Frame")
T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

#: Three times as fast as msgpack, and the same canonical bytes.
encode = msgspec.msgpack.Encoder().encode


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """A row inside a frame: an array of its fields."""


class Frame(Record):
    """The header of one kind of message."""

    #: The first frame of the message.
    operation: ClassVar[bytes]
    #: Where it goes, and what follows the header, in words.
    direction: ClassVar[str]
    batches: ClassVar[str] = ""

    def frames(self, *batches: bytes) -> list[bytes]:
        """Give the message as it goes over a socket."""
        return [self.operation, encode(self), *batches]


def about(sentence: str) -> msgspec.Meta:
    """Say what a field means; nothing is checked by it."""
    return msgspec.Meta(description=sentence)


def decoder(kind: type[F]) -> Callable[[bytes], F]:
    """Give what reads the header of a frame.

    It raises ValueError or RecursionError if a header is not as the struct says.
    """
    return msgspec.msgpack.Decoder(kind).decode


class MalformedFrameError(Exception):
    """A process of this node sent what none of its kind sends: a fault of its program."""


def read(decode: Callable[[bytes], T], frames: list[bytes]) -> T:
    """Read the header of a message.

    Raises:
        MalformedFrameError: there is none, or it has another shape.
    """
    try:
        return decode(frames[1])
    except (IndexError, ValueError, RecursionError) as error:
        raise MalformedFrameError(f"operation {frames[0]!r}: {error}") from None


def takes(
    kind: type[F], act: Callable[Concatenate[F, P], R]
) -> tuple[bytes, tuple[Callable[[bytes], Any], Callable[Concatenate[Any, P], R]]]:
    """Give an entry of a table of handlers: the operation, what reads its header, and what acts on that."""
    return kind.operation, (decoder(kind), act)
