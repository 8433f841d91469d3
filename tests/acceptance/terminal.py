"""A terminal of 80 columns and 24 lines for a command: what it shows, and keys for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from typing import TYPE_CHECKING

from tests.acceptance.command_shell import COMMAND, TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.command_shell import Shell

#: Colours, cursor movements and modes.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """A command whose standard input, output and errors are a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], side: int) -> None:
        self.process = process
        self._side = side
        #: All that came so far, with its control sequences.
        self.raw = ""

    @property
    def text(self) -> str:
        """What came so far, without control sequences."""
        return _CONTROL.sub("", self.raw)

    def press(self, keys: str) -> None:
        os.write(self._side, keys.encode())

    def wait_for(self, text: str, timeout_s: float = TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.text:
            assert time.monotonic() < deadline, f"{text!r} did not come; there is\n{self.text}"
            self._read(0.1)

    def end(self, status: int = 0) -> str:
        """Wait for the end of the command and give all that it showed."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it did not end\n{self.text}"
            self._read(0.1)
        while self._read(0.0):
            pass
        assert self.process.returncode == status, self.text
        return self.text

    def _read(self, wait_s: float) -> bool:
        if not select.select([self._side], [], [], wait_s)[0]:
            return False
        try:
            found = os.read(self._side, 65536)
        except OSError:  # what Linux gives when the other side is closed
            return False
        self.raw += found.decode(errors="replace")
        return bool(found)


@contextlib.contextmanager
def terminal(shell: Shell, *arguments: str, **variables: str) -> Iterator[Terminal]:
    """Run a command in a terminal; it is ended with the block."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**shell.environment, "TERM": "xterm", **variables}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=shell.folder,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
