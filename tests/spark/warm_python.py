"""Starts the Python processes of Spark without starting an interpreter for each of them.

Spark starts one for each stream, and one for each kind of thing that it asks of a data source; what each imports is the
same, and nearly all of its CPU time. Here the interpreter that Spark is told of is a small program, which hands its
arguments, environment, directory and standard files to a process that has imported all of it, and that forks for it.
"""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import runpy
import select
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT: Final = Path(__file__).resolve().parents[2]
_REQUEST_BYTES_MAX: Final = 1 << 18
#: What Spark's processes import. The programs themselves, which are run by name, are not among it.
_IMPORTS: Final = (
    "angarium.blocking",
    "angarium.spark.datasource",
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
)
#: It ends with the process that was forked for it, which has the other end. What is no module is run as usual.
_PROGRAM: Final = """#!{python} -IS
import _socket, marshal, os, sys
if sys.argv[1:2] != ["-m"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
line.connect({address!r})
request = marshal.dumps((sys.argv[2:], dict(os.environ), os.getcwd()))
files = b"".join(fd.to_bytes(4, sys.byteorder) for fd in range(3))
line.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
for fd in range(3):
    os.close(fd)
line.recv(1)
"""


@contextlib.contextmanager
def warm_python(folder: Path) -> Iterator[Path]:
    """Give a program that Spark can use as its Python."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("")  # the kernel chooses a name
        listener.listen()
        program = folder / "warm-python"
        program.write_text(_PROGRAM.format(python=sys.executable, address=listener.getsockname()))
        program.chmod(0o755)
        command = [sys.executable, "-m", __name__, str(listener.fileno())]
        server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            cwd=_ROOT,
            env=os.environ | {"PYTHONHASHSEED": "0"},  # as Spark has it
        )
    with server:
        yield program


def _serve(listener: socket.socket) -> None:
    """Fork for each request, until whoever started this closes standard input, or has ended."""
    for name in _IMPORTS:
        import_module(name)
    gc.collect()
    gc.freeze()
    while select.select([0, listener.fileno()], [], [])[0] == [listener.fileno()]:
        line, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _become(line)
        line.close()


def _become(line: socket.socket) -> NoReturn:
    """Be the process that a request says; `line` closes with it."""
    data, files, _, _ = socket.recv_fds(line, _REQUEST_BYTES_MAX, 3)
    sys.argv, environment, folder = marshal.loads(data)
    for number, fd in enumerate(files):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    import signal

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _serve(socket.socket(fileno=int(sys.argv[1])))
