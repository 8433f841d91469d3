"""Spool files: which of the node's accounting numbers the messages of this home are in (R181 and R182).

No file of the disk is meant; LMDB has one. A spool file is a number for about 8 MB of messages, and the number of files
is limited. The router alone gives numbers, to what is new: a STORE names the file of its rows. From then on they
keep it, whatever happens to them: packed again in the background they stay in the file of the oldest of them, and so
they do in another endpoint, at another home and after a restart, because segments name their file. So files never
become more by anything but new messages, and admission, which sees these, keeps the limit.

A block is in one file. A file is used here while a block is in it, until that is off the disk, or while a lane with
messages in it is being taken over. The router is told what changed.

No I/O, no clock; `node.home.spool.blocks` uses this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Numbers that follow each other: the first, and how many.
Runs = list[tuple[int, int]]


class SpoolFiles:
    """The files that one home uses."""

    def __init__(self) -> None:
        #: File -> blocks in it and lanes that come with messages in it; exactly the files that are used.
        self._users: dict[int, int] = {}
        #: Files that came or went since the router was told.
        self._changed: dict[int, None] = {}

    @property
    def count(self) -> int:
        """Files that hold messages."""
        return len(self._users)

    def __iter__(self) -> Iterator[int]:
        return iter(self._users)

    @property
    def newest(self) -> int:
        """The highest number in use, 0 if none is."""
        return max(self._users, default=0)

    @property
    def has_changed(self) -> bool:
        """Whether the router has to be told something."""
        return bool(self._changed)

    def join(self, file: int) -> None:
        """Count one more user of a file."""
        users = self._users.get(file, 0)
        self._users[file] = users + 1
        if not users:
            self._changed[file] = None

    def leave(self, file: int) -> None:
        """Count one user less."""
        users = self._users[file] - 1
        if users:
            self._users[file] = users
        else:
            del self._users[file]
            self._changed[file] = None

    def used(self) -> Runs:
        """Give all files in use; the router knows everything then."""
        self._changed = {}
        return runs_of(self._users)

    def take_changes(self) -> tuple[Runs, Runs]:
        """Give the files that are in use now and those that are not, of those that changed."""
        if not self._changed:
            return [], []
        changed, self._changed = self._changed, {}
        used = [file for file in changed if file in self._users]
        return runs_of(used), runs_of(file for file in changed if file not in self._users)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert all(users > 0 for users in self._users.values())


def runs_of(files: Iterable[int]) -> Runs:
    """Give numbers as runs. Example: 7, 3, 4 are (3, 2), (7, 1)."""
    runs: Runs = []
    for file in sorted(files):
        if runs and sum(runs[-1]) == file:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((file, 1))
    return runs
