"""Spool files: accounting numbers for about 8 MB of messages each (seed 004, R181 and R182).

No file of the disk is meant; LMDB has one. The rule is simple enough for the router to foretell what a STORE
may need, so that the limit is never exceeded although the home refuses nothing:

- Messages fill the open file in the order in which they are stored. A message counts once, with its spool
  size, however many lanes have it.
- The message with which a file reaches `wire.SPOOL_FILE_BYTES` is its last; the next one opens another file.
- A file is freed when all of its messages are gone. Messages are given back by the block: a block whose last
  message is gone gives back its place in every file that it is in.
- What is packed anew in the background stays in the file of its oldest message.

So a STORE of B bytes opens at most (open + B) // SPOOL_FILE_BYTES files, and one more if no file is open
(open = 0), where `open` is what the open file holds. After a restart the messages that are left fill files
from the start in the order of their blocks: never more files than before.

No I/O, no clock; `node.home.blocks` uses this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire

if TYPE_CHECKING:
    from collections.abc import Iterable


class SpoolFiles:
    """The files of one home."""

    def __init__(self) -> None:
        #: File -> blocks with messages in it; exactly the files that hold something.
        self._blocks: dict[int, int] = {}
        #: The newest file; below `wire.SPOOL_FILE_BYTES` bytes are in it, or it is closed and `_fill` is 0.
        self._newest = 0
        #: Bytes in the open file, 0 if none is open.
        self._fill = 0

    @property
    def count(self) -> int:
        """Files that hold messages, the open one included."""
        return len(self._blocks)

    @property
    def open_bytes(self) -> int:
        """Bytes in the open file, 0 if none is open."""
        return self._fill

    def place(self, total: int, sizes: Iterable[int]) -> tuple[int, int]:
        """Give the messages of a block their files: the first and the last.

        Args:
            total: the sum of the sizes, at least 1.
            sizes: spool bytes of each message, in order; looked at only if a file becomes full.
        """
        first = self._newest + (self._fill == 0)
        if self._fill + total < wire.SPOOL_FILE_BYTES:
            self._newest = first
            self._fill += total
        else:
            for size in sizes:
                self._newest += self._fill == 0
                self._fill += size
                if self._fill >= wire.SPOOL_FILE_BYTES:
                    self._fill = 0
        for file in range(first, self._newest + 1):
            self._blocks[file] = self._blocks.get(file, 0) + 1
        return first, self._newest

    def join(self, file: int) -> None:
        """Count one more block in a file that holds something: rows of it were packed anew."""
        self._blocks[file] += 1

    def leave(self, first: int, last: int) -> None:
        """Give back the places of a block that is gone."""
        blocks = self._blocks
        for file in range(first, last + 1):
            if blocks[file] > 1:
                blocks[file] -= 1
            else:
                del blocks[file]
                if file == self._newest:
                    self._fill = 0

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert all(0 < file <= self._newest and blocks > 0 for file, blocks in self._blocks.items())
        assert 0 <= self._fill < wire.SPOOL_FILE_BYTES
        assert self._fill == 0 or self._newest in self._blocks
