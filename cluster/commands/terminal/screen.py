"""A terminal that shows something that changes: each state is drawn over the one before it.

`live` draws where the cursor is and leaves the last state there; `full` has the whole screen to itself, reads keys,
and prints the last state at its end, so that it stays in the scrollback. Without a terminal each state is printed
below the one before, and there are no keys.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import sys
import termios
import tty
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"
_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
#: What arrow keys end in, and what they are called here.
_ARROWS: Final = {"A": "up", "B": "down", "C": "right", "D": "left"}
#: A key that sends more than a character, or a character.
_KEY: Final = re.compile(r"\x1b[\[O][0-9;]*([A-Za-z~])|.", re.DOTALL)
#: Bytes of keys that are taken at once; more than fingers press between two looks.
_KEY_BYTES_MAX: Final = 64


def size() -> tuple[int, int]:
    """Give columns and lines of the terminal."""
    found = shutil.get_terminal_size()
    return found.columns, found.lines


@contextlib.contextmanager
def live() -> Iterator[Callable[[Sequence[str]], None]]:
    """Give a function that draws lines over those that it drew before."""
    if not sys.stdout.isatty():
        yield _print
        return
    drawn = 0

    def draw(lines: Sequence[str]) -> None:
        nonlocal drawn
        up = f"\x1b[{drawn}A" if drawn else ""
        fitting = list(lines)[: size()[1] - 1]
        drawn = len(fitting)
        sys.stdout.write(f"{up}\r{_CLEAR_BELOW}" + "".join(f"{line}\n" for line in fitting))
        sys.stdout.flush()

    yield draw


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(line)
    sys.stdout.flush()


class Full:
    """The whole screen of a terminal, and its keys."""

    def __init__(self) -> None:
        """Nothing is drawn before `__enter__`."""
        self._keyboard = sys.stdin.fileno()
        self._mode = termios.tcgetattr(self._keyboard)
        #: What is on the screen.
        self._lines: list[str] = []
        #: Keys that were pressed and not given yet.
        self._pressed: list[str] = []

    def __enter__(self) -> Full:
        """Clear the screen and take the keys as they come."""
        tty.setcbreak(self._keyboard)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()
        return self

    def __exit__(self, *_error: object) -> None:
        """Give the terminal back as it was, with the last state printed on it."""
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._mode)
        _print(self._lines)

    def draw(self, lines: Sequence[str]) -> None:
        """Draw lines, as many as the screen has."""
        self._lines = list(lines)[: size()[1]]
        text = "\r\n".join(f"{line}{_CLEAR_LINE}" for line in self._lines)
        sys.stdout.write(f"{_HOME}{text}{_CLEAR_BELOW}")
        sys.stdout.flush()

    def key(self, wait_s: float) -> str:
        """Give the next key that is pressed within a time: a character, the name of an arrow, or nothing."""
        if not self._pressed:
            ready, _, _ = select.select([self._keyboard], [], [], max(0.0, wait_s))
            if ready:
                self._pressed = keys(os.read(self._keyboard, _KEY_BYTES_MAX).decode(errors="replace"))
        return self._pressed.pop(0) if self._pressed else ""


def keys(sent: str) -> list[str]:
    """Give the keys that sent some text: characters, and the names of arrows; "" for others."""
    return [_ARROWS.get(key[1], "") if key[1] else key[0] for key in _KEY.finditer(sent)]
