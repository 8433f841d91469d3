"""What a worker is at, where others can read it when it is dead.

A file of the runtime directory is mapped into the memory of the worker, so a note costs no system call, and what was
noted survives the process however it ends. Each step that works on somebody's account is noted before it begins and
cleared behind it; the supervisor reads the note of a worker that died (`cluster.supervisor.blame`).
"""

from __future__ import annotations

import mmap
import os
from functools import partial
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

#: A frame of a session is matched: `whose` is the number of the session, `router` the incarnation that gave it.
MATCH: Final = 1
#: A lane is served: a consumer or browser binds, messages are examined or handed out. `whose` is the lane.
DELIVER: Final = 2
KINDS: Final = {MATCH: "match", DELIVER: "deliver"}

_NOTE: Final = Struct("<BQQ")
_TIME: Final = Struct("<d")
_TIME_AT: Final = 24
_BYTES: Final = 32

_pack_time = _TIME.pack_into


class Note(NamedTuple):
    """What a worker was at."""

    kind: str
    whose: int
    router: int
    #: When that turn of its loop began, in monotonic s.
    since: float


class BlackBox:
    """The notes of one worker; without a file they are for nobody."""

    __slots__ = ("_buffer", "begin", "end")

    def __init__(self, path: Path | None = None) -> None:
        """Make it empty; what a predecessor noted in the file is gone."""
        self._buffer: bytearray | mmap.mmap = bytearray(_BYTES)
        if path is not None:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(descriptor, _BYTES)
                self._buffer = mmap.mmap(descriptor, _BYTES)
            finally:
                os.close(descriptor)
        #: Notes a step (kind, whose, router) before it begins: one call of C code, since a lone message costs one.
        self.begin: Callable[[int, int, int], None] = partial(_NOTE.pack_into, self._buffer, 0)
        #: Clears the note: the step is over.
        self.end: Callable[[], None] = partial(self._buffer.__setitem__, 0, 0)

    def turn(self, now: float) -> None:
        """Note that a turn of the loop begins."""
        _pack_time(self._buffer, _TIME_AT, now)


def path_of(runtime_dir: str | os.PathLike[str], index: int) -> Path:
    """Give the file of a worker."""
    return Path(runtime_dir) / f"worker.{index}.at"


def read(path: Path) -> Note | None:
    """Give what a worker was at when it died; None if it was at nobody's work, or never began."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) != _BYTES:
        return None
    kind, whose, router = _NOTE.unpack_from(content)
    if kind not in KINDS:
        return None
    return Note(KINDS[kind], whose, router, _TIME.unpack_from(content, _TIME_AT)[0])
