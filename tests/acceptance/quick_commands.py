"""`angarium` on the path of a shell, without an interpreter that imports all of it for each command line.

The program there hands its arguments, environment, directory and standard files to a thread of the test, which has a
command server fork for them; it passes signals on, and ends with the exit code of what was forked.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command_server import CommandServer

_REQUEST_BYTES_MAX: Final = 1 << 18
_PROGRAM: Final = """#!{python} -IS
import json, os, signal, socket, sys
told = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
told.connect({address!r})
request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()])
socket.send_fds(told, [request.encode()], [0, 1, 2])
pid = int(told.recv(100))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(pid, number))
sys.exit(int(told.recv(100) or -1))
"""


class QuickCommands:
    """A folder with the program; a context manager that serves it."""

    def __init__(self, folder: Path, server: CommandServer) -> None:
        """Write the program.

        Args:
            folder: for it, and for a socket: its path is short.
            server: what forks commands.
        """
        self.folder = folder
        self._server = server
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind(str(folder / "door"))
        self._door.listen()
        program = folder / "angarium"
        program.write_text(_PROGRAM.format(python=sys.executable, address=str(folder / "door")))
        program.chmod(0o755)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the door is closed
            while True:
                caller, _ = self._door.accept()
                with caller:
                    request, fds, _, _ = socket.recv_fds(caller, _REQUEST_BYTES_MAX, 3)
                    arguments, environment, folder = json.loads(request)
                    self._server.run_for(caller, arguments, environment, folder, fds)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self._thread.join()
