"""Spool files: accounting numbers for about 8 MB of messages each, which the router gives (R181, R182).

No file of a disk is meant. What a STORE brings to a home lies in one file, the one that is open there; when that got
`wire.SPOOL_FILE_BYTES` or more, the next STORE opens another one. A file is used while some home has a message in it,
or a STORE for it is on its way; homes keep the number with the messages and tell which ones they use.

Whatever is done with messages later, they keep their file: packed again, at another home, in another endpoint. So one
file may be used by several homes and is one nevertheless, and only new messages make more of them. `fit` is asked
before these are admitted, so the limit is never exceeded, also when processes die or restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire

if TYPE_CHECKING:
    from collections.abc import Iterable


class SpoolFiles:
    """The spool files of the node."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: File -> homes that have messages in it and STOREs for it that are on their way; exactly the used ones.
        self._users: dict[int, int] = {}
        #: Home -> the file that it fills, which is used, and the bytes that it got.
        self._open: dict[int, tuple[int, int]] = {}
        #: No file had a higher number.
        self._newest = 0

    def __len__(self) -> int:
        return len(self._users)

    def __contains__(self, file: int) -> bool:
        return file in self._users

    def fit(self, homes: Iterable[int]) -> bool:
        """Tell whether each of some homes can be given a STORE."""
        opened = self._open
        return len(self._users) + sum([home not in opened for home in homes]) <= self.limit

    def fits(self, file: int) -> bool:
        """Tell whether messages can go on in a file."""
        return file in self._users or len(self._users) < self.limit

    def choose(self, home: int, size: int) -> int:
        """Give the file for so many bytes of new messages; they are to `join` it at once."""
        file, held = self._open.get(home, (0, 0))
        if not file:
            file = self._newest = self._newest + 1
        if held + size < wire.SPOOL_FILE_BYTES:
            self._open[home] = file, held + size
        else:
            self._open.pop(home, None)
        return file

    def go_on(self, home: int, file: int, held: int) -> None:
        """Go on filling a file that another router opened, if it has room and nobody fills it."""
        if (
            home not in self._open
            and file in self._users
            and held < wire.SPOOL_FILE_BYTES
            and all(file != other for other, _ in self._open.values())
        ):
            self._open[home] = file, held

    def join(self, file: int) -> None:
        """Count one more user of a file."""
        self._users[file] = self._users.get(file, 0) + 1
        self._newest = max(self._newest, file)

    def leave(self, file: int) -> None:
        """Count one user less."""
        users = self._users[file] - 1
        if users:
            self._users[file] = users
            return
        del self._users[file]
        for home, (other, _) in list(self._open.items()):
            if other == file:
                del self._open[home]

    def close(self, home: int) -> None:
        """A home is no more: nothing is filled there."""
        self._open.pop(home, None)

    def users(self) -> dict[int, int]:
        """Give the files in use, and how many use each."""
        return dict(self._users)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert all(0 <= file <= self._newest and users > 0 for file, users in self._users.items())
        assert all(file in self._users for file, _ in self._open.values())
        files = [file for file, _ in self._open.values()]
        assert len(files) == len(dict.fromkeys(files))
