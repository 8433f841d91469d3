"""Reads a page of the documentation as a newcomer would: types what it says, compares what it shows.

Fenced blocks of a page mean, in their order:

    ```console                       commands (lines that begin with `$ `), typed one after the other
    ```console title="Terminal 2"    the same in another terminal; without a title it is the first one
    ```python title="worker.py"      a file, written into the directory of that moment (also toml, sql, ...)
    ```text                          what the commands before it in that terminal print, in this order
    ```text title="Terminal 2"       what is printed in another terminal meanwhile

A command has to succeed. One that goes on is waited for, unless a `text` block follows its block: then it is enough
that the text came, and the program runs on until the next block of its terminal, which waits for it, or ends it if its
first line is `^C`, as Ctrl-C does. Other lines may be printed in between, and `...` in an expected line stands for
anything. Blocks of other languages, and files without a title, are not executed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tests.acceptance.installation import ROOT, clean_environment
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

FENCE: Final = re.compile(r"^```(\w*)([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE: Final = re.compile(r'title="([^"]+)"')
HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
OVERWRITTEN: Final = re.compile(r"[^\n]*\r(?!\n)")
INTERRUPT: Final = "^C"
FIRST_TERMINAL: Final = "Terminal 1"
#: The default port of a node first; then the others in the documentation.
PORTS: Final = ("55555", "55556", "8883", "8084", "8090")
#: What one command may take; generous, for Spark starts slowly on a machine that is busy.
COMMAND_TIMEOUT_S: Final = 240.0
#: How long text that a program prints in the background may take to come.
TEXT_TIMEOUT_S: Final = 30.0
_LOOK_INTERVAL_S: Final = 0.02


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its title if it has one, and where it is."""

    language: str
    title: str
    text: str
    place: str

    @property
    def commands(self) -> list[str]:
        """Give what is typed: lines that begin with `$ `, each with the lines that continue it, and `^C`."""
        found: list[str] = []
        for line in self.text.splitlines():
            if found and found[-1].endswith("\\"):
                found[-1] += f"\n{line}"
            elif line.startswith("$ ") or line == INTERRUPT:
                found.append(line.removeprefix("$ "))
        return found


def blocks(page: Path, *, since: str = "", until: str = "") -> list[Block]:
    """Give the blocks of a page, or those from one heading on and up to another one."""
    text = page.read_text(encoding="utf-8")
    start = _heading(text, since) if since else 0
    end = _heading(text, until) if until else len(text)
    found = []
    for match in FENCE.finditer(text):
        if start <= match.start() < end:
            title = TITLE.search(match[2])
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(match[1], title[1] if title else "", match[3], f"{page.name}:{line}"))
    return found


def _heading(text: str, name: str) -> int:
    starts = [match.start() for match in HEADING.finditer(text) if match[1] == name]
    assert starts, f"no heading {name!r}"
    return starts[0]


class Reader:
    """Somebody with a page and as many terminals as it asks for; a context manager that closes them."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], instead: Mapping[str, str] | None = None
    ) -> None:
        """Sit down.

        Args:
            folder: where the terminals open.
            environment: what their commands inherit.
            instead: texts of the page and what to type and expect for them, as a port that is free.
        """
        self._folder = folder
        self._environment = {**environment, "TERM": "dumb"}
        self._instead = dict(instead or {})
        self._terminals: dict[str, _Terminal] = {}

    def read(self, page: list[Block]) -> None:
        """Do what the blocks of a page say.

        Raises:
            AssertionError: a command failed, did not end, or printed something else.
        """
        current = FIRST_TERMINAL
        for block, following in zip(page, [*page[1:], None], strict=True):
            if block.language == "console":
                current = block.title or FIRST_TERMINAL
                self._type(current, block)
                if following is None or following.language != "text":
                    self._terminals[current].wait()
            elif block.language == "text":
                expected = self._as_here(block.text).splitlines()
                self._terminal(block.title or current).expect(expected, block.place)
            elif block.title:
                file = self._terminal(current).directory() / block.title
                file.write_text(self._as_here(block.text), encoding="utf-8")
        for terminal in self._terminals.values():
            terminal.wait()

    def _type(self, name: str, block: Block) -> None:
        assert block.commands, f"{block.place}: a console block without a command"
        terminal = self._terminal(name)
        for command in block.commands:
            if command == INTERRUPT:
                terminal.interrupt()
            else:
                terminal.wait()
                terminal.enter(self._as_here(command), block.place)

    def _terminal(self, name: str) -> _Terminal:
        if name not in self._terminals:
            self._terminals[name] = _Terminal(self._folder, self._environment)
        return self._terminals[name]

    def _as_here(self, text: str) -> str:
        for theirs, ours in self._instead.items():
            text = text.replace(theirs, ours)
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for terminal in self._terminals.values():
            terminal.close()


class _Terminal:
    """One bash: commands go in one by one, each tells its status on a pipe, all print to a terminal of 80 columns."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._status, self._theirs = os.pipe()
        self._screen, screen = pty.openpty()
        fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=screen,
            stderr=screen,
            pass_fds=[self._theirs],
            start_new_session=True,
        )
        os.close(self._theirs)
        os.close(screen)
        self._output = bytearray()
        # Programs in the background print as well, and would have to wait if nobody read.
        self._watch = threading.Thread(target=self._read, daemon=True)
        self._watch.start()
        self._running = ""
        #: Up to where expected text was found.
        self._seen = 0

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # nobody has the screen open any more
            while data := os.read(self._screen, 65_536):
                self._output += data

    def directory(self) -> Path:
        """Give the directory that the shell is in."""
        return Path(f"/proc/{self._bash.pid}/cwd").readlink()

    def enter(self, command: str, place: str) -> None:
        """Type a command. What it reads is empty."""
        assert not self._running, self._running
        self._running = f"{place}: {command}"
        # A plain `wait` hides whether what it waited for has failed.
        quoted = ("wait $!" if command == "wait" else command).replace("'", "'\\''")
        line = f"eval '{quoted}' </dev/null {self._theirs}>&-; echo $? >&{self._theirs}\n"
        assert self._bash.stdin is not None
        self._bash.stdin.write(line.encode())
        self._bash.stdin.flush()

    def wait(self) -> None:
        """Wait for the command that runs, if one does; it must succeed."""
        if self._running:
            command, status = self._running, self._end()
            assert status == "0", f"{command} ended with {status or 'its shell'}\n{self._printed()}"

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        assert self._running, "nothing runs that Ctrl-C could end"
        children = Path(f"/proc/{self._bash.pid}/task/{self._bash.pid}/children").read_text()
        for pid in children.split():
            os.kill(int(pid), signal.SIGINT)
        self._end()

    def _end(self) -> str:
        """Wait until the command has ended, and give its status."""
        ready, _, _ = select.select([self._status], [], [], COMMAND_TIMEOUT_S)
        assert ready, f"{self._running} did not end within {COMMAND_TIMEOUT_S:g} s\n{self._printed()}"
        self._running = ""
        return os.read(self._status, 100).decode().strip()

    def expect(self, lines: list[str], place: str) -> None:
        """Wait until lines were printed in this order, since those that were expected before them."""
        deadline = time.monotonic() + (COMMAND_TIMEOUT_S if self._running else TEXT_TIMEOUT_S)
        while (end := self._found(lines)) is None:
            assert time.monotonic() < deadline, f"{place}: not printed:\n{lines}\nbut\n{self._printed()}"
            if self._running and select.select([self._status], [], [], 0)[0]:
                self.wait()
                deadline = time.monotonic() + TEXT_TIMEOUT_S
            time.sleep(_LOOK_INTERVAL_S)
        self._seen = end

    def _found(self, lines: list[str]) -> int | None:
        """Give where the last of these lines ends, or None while one is missing."""
        printed = self._printed()
        position = self._seen
        for line in lines:
            parts = [re.escape(part) for part in line.rstrip().split("...")]
            match = re.compile(rf"^{'.*'.join(parts)}[ \t]*\n", re.MULTILINE).search(printed, position)
            if match is None:
                return None
            position = match.end()
        return position

    def _printed(self) -> str:
        """Give what the terminal has shown, without colours; a line that was written over is its last state."""
        text = CONTROL.sub("", bytes(self._output).decode(errors="replace")).replace("\r\n", "\n")
        return OVERWRITTEN.sub("", text)

    def close(self) -> None:
        """End the shell and what it started."""
        assert self._bash.stdin is not None
        for number in (signal.SIGTERM, signal.SIGKILL):
            # The group outlives its leader as long as a program of it runs.
            try:
                os.killpg(self._bash.pid, number)
                self._bash.wait(timeout=5)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        self._bash.stdin.close()
        self._bash.wait()
        os.close(self._status)
        self._watch.join(timeout=5)
        os.close(self._screen)


class Desk:
    """A directory like a fresh copy of the project, whose environment is the installation that is tried."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        """Lay out the copy; commands of its `.venv` are those in `binaries`."""
        self._folder = folder
        for path in ROOT.iterdir():
            if path.name not in {".venv", ".git", "angarium-data"}:
                (folder / path.name).symlink_to(path)
        (folder / ".venv" / "bin").mkdir(parents=True)
        #: What commands inherit.
        self.environment = clean_environment() | {
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder),
            "XDG_RUNTIME_DIR": str(folder),
        }
        # The ports in the documentation belong to those who read it; a test takes some that are free.
        self._instead = {port: str(free_port()) for port in PORTS}
        self.use(binaries)

    def use(self, binaries: Path, *, instead: Path | None = None) -> None:
        """Have another installation be the environment of the copy, for those who sit down from now on.

        Args:
            binaries: its commands.
            instead: a folder of commands that are taken instead of those.
        """
        self._binaries = binaries
        path = f"'{instead}':'{binaries}'" if instead else f"'{binaries}'"
        (self._folder / ".venv" / "bin" / "activate").write_text(f"export PATH={path}:$PATH\n")
        self.environment["ANGARIUM_VENV"] = str(binaries.parent)

    def reader(self, *, listen: bool = True) -> Reader:
        """Give somebody who sits down here, with terminals that nobody has typed anything into.

        A node listens on a free port instead of the default one, unless the page itself says where.
        """
        environment = dict(self.environment)
        if listen:
            environment["ANGARIUM_LISTEN"] = f"tcp://127.0.0.1:{self._instead[PORTS[0]]}"
        return Reader(self._folder, environment, self._instead)

    def clear(self) -> None:
        """Stop the nodes that pages have left."""
        for file in self._folder.glob("**/node.json"):
            command = [str(self._binaries / "angarium"), "down", "--data", str(file.parent)]
            subprocess.run(command, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False)
