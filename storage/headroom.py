"""What a commit may still take of the map and of the disk.

A full disk is to be found out before anything is written. So the file is allocated ahead of its end, in steps,
and a commit for which that is impossible is refused. Looking at the free space of the file system instead
would cost each commit a system call, and say nothing about what others take a moment later.

A spool that is full must still be able to forget messages, and LMDB needs pages to delete: it copies those
that it changes. So commits that add blocks, the values with the messages, leave a reserve, in the map and in
what is allocated; all others may use it.

Who sends messages is to hear of a full disk before they are on their way. So there is a second reserve, ahead of the
first one, for the blocks that are under way by then: when it cannot be kept any more the room is *low*, and nothing new
is to be admitted.

Per commit this is one walk over its changes. What LMDB really uses is looked up only when the sum of what was
granted since the last look might be more than there is.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: Kept for commits without blocks: thousands of deletions, and what is settled meanwhile. Part of a small map.
RESERVE_BYTES: Final = 4 << 20
RESERVE_SHARE: Final = 8
#: Kept for blocks under way: a part of the file, between these; no larger part of a map.
AHEAD_SHARE: Final = 8
AHEAD_BYTES_MIN: Final = 4 << 20
AHEAD_BYTES_MAX: Final = 32 << 20
#: The file grows by half, in steps between these.
STEP_BYTES_MIN: Final = 2 << 20
STEP_BYTES_MAX: Final = 32 << 20
#: A change copies the pages on the way to its key, and may split some.
CHANGE_BYTES: Final = 8 << 10
#: A commit changes the list of free pages and the table of tables.
COMMIT_BYTES: Final = 64 << 10
#: What a system says when there is no room: on the device, of the user, of the process.
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_log = logging.getLogger(__name__)


class NoRoomError(Exception):
    """There is no room for a commit; the text says of what."""


class Usage(NamedTuple):
    """What LMDB uses, in bytes."""

    #: Of the file, up to the last page that was ever used.
    end_bytes: int
    #: Of all tables.
    used_bytes: int
    #: Of the pages that are no messages.
    index_bytes: int


def usage_of(environment: Any, tables: Iterable[Any]) -> Usage:
    """Give what an environment of LMDB uses, which has these tables."""
    index, values = 0, 0
    with environment.begin() as transaction:
        for table in tables:
            stat = transaction.stat(table)
            index += stat["branch_pages"] + stat["leaf_pages"]
            values += stat["overflow_pages"]
    page_bytes = environment.stat()["psize"]
    end = environment.info()["last_pgno"] + 1
    return Usage(end * page_bytes, (index + values) * page_bytes, index * page_bytes)


class SpaceGuard:
    """Says before each commit whether there is room for it, and makes some."""

    def __init__(
        self, descriptor: int, map_bytes: int, look: Callable[[], Usage], *, has_ahead: bool = False
    ) -> None:
        """Allocate room ahead; the caller closes the descriptor. `look` gives what LMDB uses."""
        self._descriptor = descriptor
        self._map_bytes = map_bytes
        self._look = look
        self._reserve = min(RESERVE_BYTES, map_bytes // RESERVE_SHARE)
        self._has_ahead = has_ahead
        self._ahead = min(AHEAD_BYTES_MIN, map_bytes // AHEAD_SHARE) if has_ahead else 0
        #: Whether there is no more room than for what is under way.
        self.is_low = False
        #: Not used and allocated at the last look, without the first reserve and what was granted since.
        self._spare = 0
        #: Nothing behind this byte is sure to have room on disk.
        self._allocated = 0
        #: What the last commit wanted that was refused.
        self._refused_bytes = 0
        usage = look()
        #: The file cannot end behind these bytes: what the last look found and all that was granted since.
        self._end = usage.end_bytes
        #: The pages of the index cannot take more than these bytes.
        self._index = usage.index_bytes
        # What is there already stays, also when there is no room for more.
        self._allocate(min(os.fstat(descriptor).st_size, map_bytes))
        self._grow(usage, 0)

    def take(self, changes: Sequence[tuple[int, bytes, bytes | None]], blocks: int) -> None:
        """Make sure of the room for a commit.

        Args:
            changes: table, key, value.
            blocks: the table of the values with messages.

        Raises:
            NoRoomError: there is none.
        """
        size, puts, has_blocks = 0, 0, False
        for table, _, value in changes:
            if value is not None:
                size += len(value)
                puts += 1
                has_blocks |= table == blocks
        # Deletions copy pages of the index, none more than once.
        index = CHANGE_BYTES * puts
        self._index += index
        deletions = min(CHANGE_BYTES * (len(changes) - puts), self._index)
        needed = 2 * size + index + deletions + COMMIT_BYTES
        self._end += needed
        self._spare -= needed
        if self.is_low or self._end > self._allocated - self._reserve - self._ahead:
            self._make_room(needed, has_blocks=has_blocks)

    @property
    def room_bytes(self) -> int:
        """Give how many bytes of messages may be under way; 0 if the room is low."""
        # A commit asks for twice its size, and inside a file for twice as much again.
        return 0 if self.is_low else max(self._spare // 4, 1)

    def has_reserve(self) -> bool:
        """Tell whether what was refused last finds room and leaves the reserve, allocating it if it can be."""
        return self._reach(self._look().end_bytes + self._refused_bytes)

    def _make_room(self, needed: int, *, has_blocks: bool) -> None:
        usage = self._look()
        self._index = usage.index_bytes
        if self._grow(usage, needed):
            self._end = usage.end_bytes + needed
            return
        self._end = usage.end_bytes
        if not has_blocks:
            return
        if not self._is_inside(usage, needed):
            self._refused_bytes = needed
            raise NoRoomError(
                f"{usage.used_bytes:,} of {self._allocated:,} bytes are used, a commit wants {needed:,}"
            )
        self._end += needed

    def _grow(self, usage: Usage, needed: int) -> bool:
        """Let the file grow by a commit, note whether the room is low then, and tell whether it could grow."""
        # What is low stays so until there is room for more than a moment.
        ahead = self._ahead + self._ahead // 4 if self.is_low else self._ahead
        can_grow_on = self._reach(usage.end_bytes + needed + ahead)
        self._spare = self._left(usage) - needed
        if can_grow_on:
            self.is_low = False
            return True
        can_grow = self._reach(usage.end_bytes + needed)
        is_full = not can_grow and not self._is_inside(usage, needed)
        self.is_low = self._has_ahead and (is_full or 2 * needed + ahead > self._left(usage))
        return can_grow

    def _left(self, usage: Usage) -> int:
        """Give the bytes that are allocated, inside the file and behind its end, without the first reserve."""
        return self._allocated - self._reserve - usage.used_bytes

    def _is_inside(self, usage: Usage, needed: int) -> bool:
        """Tell whether freed pages are enough for a commit.

        They may be too scattered for a large value: what LMDB finds no place for goes to the end.
        """
        if 2 * needed > self._left(usage):
            return False
        # At the end of the map LMDB says in time that there is no more. A write that the disk does not take may end
        # the process, so there has to be room behind the end; unless so much is free that nothing goes there.
        return (
            self._allocated >= self._map_bytes
            or usage.end_bytes + needed <= self._allocated - self._reserve // 4
            or 2 * usage.used_bytes <= usage.end_bytes
        )

    def _reach(self, end: int) -> bool:
        """Allocate up to an end and the reserve behind it, and a step more; False if there is no room."""
        wanted = end + self._reserve
        if wanted > self._map_bytes:
            self._allocate(self._map_bytes)
            return False
        step = min(max(end // 2, STEP_BYTES_MIN), STEP_BYTES_MAX)
        if self._allocated >= wanted + step // 2:
            return True
        return self._allocate(min(wanted + step, self._map_bytes)) or self._allocate(wanted)

    def _allocate(self, end: int) -> bool:
        if end <= self._allocated:
            return True
        try:
            os.posix_fallocate(self._descriptor, 0, end)
        except OSError as error:
            if error.errno in NO_ROOM:
                return False
            # Without the call (some file systems) a full disk ends the process, which loses nothing.
            _log.warning("the spool cannot be allocated ahead: %s", error)
        self._allocated = end
        if self._has_ahead:
            self._ahead = max(self._ahead, min(AHEAD_BYTES_MAX, end // AHEAD_SHARE))
        return True
