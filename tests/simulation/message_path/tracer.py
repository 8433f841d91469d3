"""Writes down which functions of ours are called while a message is on its way.

A state machine is entered by few functions, those that its shell calls: `ENTRIES`. What these call, directly or by
other people's code, belongs to the path; what a rig asks besides (is it ready, what does the disk hold) does not.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType, FrameType

ROOT: Final = Path(__file__).resolve().parents[3]
#: What counts; the rest is the rig, or other people's.
PRODUCT: Final = (
    "router/",
    "node/",
    "storage/",
    "cluster/link/",
    "cluster/relay/",
    "angarium_server/",
    "sdk/angarium/",
)
#: How the file of an entry begins -> the part that it belongs to; the first that fits.
PARTS: Final = {
    "router/": "router",
    "node/home/": "home",
    "node/": "worker",
    "cluster/link/": "link",
    "cluster/relay/": "link",
    "sdk/angarium/client/": "client",
}
CLIENT: Final = "client"
#: What shells call. Of clients it is everything that an application or an event loop calls: see `_is_entry`.
ENTRIES: Final = {
    "router": {
        "Router.client_frames",
        "Router.worker_frames",
        "Router.tick",
        "Router.next_tick",
        "Outbox.take",
    },
    "worker": {"Worker.handle", "Worker.work", "Worker.tidy"},
    "home": {"Home.handle", "Home.tick", "Home.take_frames", "Home.take_write", "Home.written"},
    "link": {"Pair.received", "Pairs.tick"},
}
#: Of these, what is called in every turn of a loop, whether there are messages or not.
TURNS: Final = {
    "Router.tick",
    "Router.next_tick",
    "Worker.work",
    "Worker.tidy",
    "Home.tick",
    "Pairs.tick",
}
#: The session of a client is called by its connection; without one, and by clocks, only rigs and timers call.
_NO_ENTRIES: Final = ("ClientSession.", "Connection._tick")
#: What operations are called; where a client and a node have the same letter, both.
_OPERATIONS: Final = {
    letter: "/".join(name for name, value in vars(wire).items() if name.isupper() and value == letter)
    for letter in (one for one in vars(wire).values() if isinstance(one, bytes) and len(one) == 1)
}
#: Heartbeats come by whether there are messages or not.
_HEARTBEATS: Final = ("PING", "PONG")
#: Names of code that is a part of the function around it.
_INNER: Final = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
#: In the stack of frames: nothing of ours is running, or something that does not count.
_OUTSIDE: Final = -1
_IGNORED: Final = -2


class Function(NamedTuple):
    """A function of ours."""

    #: Relative to the project.
    file: str
    name: str


class Call(NamedTuple):
    """One call of it."""

    function: Function
    part: str
    #: Number of the call that made it, -1 for an entry.
    caller: int
    #: What came in, where an entry takes a frame: PUBLISH, STORE.
    operation: str


@dataclass
class Walk:
    """The calls of a message's path, in the order of their beginning."""

    calls: list[Call] = field(default_factory=list)

    def of(self, *, client: bool) -> Walk:
        """Give what happens in clients, or in nodes."""
        return self._only([(call.part == CLIENT) == client for call in self.calls])

    def chains(self) -> list[tuple[Function, ...]]:
        """Give for each call the functions from its entry, or the turn of a loop, down to it."""
        chains: list[tuple[Function, ...]] = []
        for call in self.calls:
            above = () if call.caller < 0 or call.function.name in TURNS else chains[call.caller]
            chains.append((*above, call.function))
        return chains

    def beyond(self, idle: Walk) -> Walk:
        """Give it without what the turns of loops called in an idle time too, unless more came of it."""
        known = {chain for chain in idle.chains() if chain[0].name in TURNS}
        kept = [chain not in known for chain in self.chains()]
        for at in range(len(kept) - 1, -1, -1):
            caller = self.calls[at].caller
            if kept[at] and caller >= 0:
                kept[caller] = True
        return self._only(kept)

    def in_each(self, others: Sequence[Walk]) -> Walk:
        """Give it without functions that were not called in each of these: timers happened to call them."""
        common = set(self.functions).intersection(*(other.functions for other in others))
        return self._only([call.function in common for call in self.calls])

    def _only(self, kept: list[bool]) -> Walk:
        """Give some of the calls, each with the nearest caller that is among them."""
        calls: list[Call] = []
        #: For each call the place among those that are kept, or that of its caller.
        places: list[int] = []
        for call, is_kept in zip(self.calls, kept, strict=True):
            above = places[call.caller] if call.caller >= 0 else -1
            places.append(len(calls) if is_kept else above)
            if is_kept:
                calls.append(call._replace(caller=above))
        return Walk(calls)

    def until(self, operation: str, part: str) -> Walk:
        """Give its beginning, with all of what a part does with the first frame of a kind."""
        entries = [at for at, call in enumerate(self.calls) if call.caller < 0]
        first = next(at for at in entries if self.calls[at][1:] == (part, -1, operation))
        following = [at for at in entries if at > first]
        return Walk(self.calls[: following[0]] if following else self.calls)

    @property
    def functions(self) -> list[Function]:
        """Give the functions in the order of their first call."""
        return list(dict.fromkeys(call.function for call in self.calls))

    @property
    def files(self) -> list[str]:
        """Give the files in the order in which they are entered first."""
        return list(dict.fromkeys(one.file for one in self.functions))

    @property
    def parts(self) -> list[str]:
        """Give the parts in the order in which they are entered first."""
        return list(dict.fromkeys(call.part for call in self.calls))

    @property
    def lines(self) -> int:
        """Count the lines of these files."""
        return sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in self.files)

    def turns_back(self, at: int) -> bool:
        """Tell whether a call leads back into a file that has called the one that it comes from."""
        file, above = self.calls[at].function.file, self.calls[at].caller
        if above < 0 or self.calls[above].function.file == file:
            return False
        while above >= 0:
            if self.calls[above].function.file == file:
                return True
            above = self.calls[above].caller
        return False

    @property
    def turns(self) -> list[tuple[Function, Function]]:
        """Give who calls whom where the path turns back."""
        calls = self.calls
        found = [
            (calls[one.caller].function, one.function) for at, one in enumerate(calls) if self.turns_back(at)
        ]
        return list(dict.fromkeys(found))


class Tracer:
    """Hears of every call of this thread while it traces."""

    def __init__(self) -> None:
        """Begin with an empty walk."""
        self.walk = Walk()
        #: What was found out about code.
        self._known: dict[CodeType, Function | None] = {}
        #: For each frame of Python that has begun since the start: its call, or that of ours that it works for.
        self._stack: list[int] = []

    @contextmanager
    def tracing(self) -> Iterator[Walk]:
        """Write down what is called within."""
        before = sys.getprofile()
        sys.setprofile(self._heard)
        try:
            yield self.walk
        finally:
            sys.setprofile(before)
            self._stack.clear()

    def _heard(self, frame: FrameType, event: str, _argument: Any) -> None:
        stack = self._stack
        if event == "call":
            stack.append(self._called(frame, stack[-1] if stack else _OUTSIDE))
        elif event == "return" and stack:
            stack.pop()

    def _called(self, frame: FrameType, above: int) -> int:
        code = frame.f_code
        if code not in self._known:
            self._known[code] = function_of(code)
        function = self._known[code]
        if function is None or above == _IGNORED:
            return above
        operation = ""
        part = self.walk.calls[above].part if above >= 0 else part_of(function)
        if above == _OUTSIDE:
            operation = _operation(frame)
            if not _is_entry(part, function) or operation in _HEARTBEATS:
                return _IGNORED
        self.walk.calls.append(Call(function, part, above, operation))
        return len(self.walk.calls) - 1


def function_of(code: CodeType) -> Function | None:
    """Give the function of ours that code is, or None."""
    path = Path(code.co_filename)
    if not path.is_relative_to(ROOT) or code.co_qualname.endswith(_INNER):
        return None
    file = path.relative_to(ROOT).as_posix()
    return Function(file, code.co_qualname) if file.startswith(PRODUCT) else None


def part_of(function: Function) -> str:
    """Give the part that is entered by a function; empty for what several have in common."""
    return next((part for start, part in PARTS.items() if function.file.startswith(start)), "")


def _is_entry(part: str, function: Function) -> bool:
    if part == CLIENT:
        return not function.name.startswith(_NO_ENTRIES)
    return function.name in ENTRIES.get(part, ())


def _operation(frame: FrameType) -> str:
    """Give the operation of the frames that a function was called with, if it was."""
    frames = frame.f_locals.get("frames")
    if isinstance(frames, list) and frames and isinstance(frames[0], bytes):
        return _OPERATIONS.get(frames[0], "")
    return ""
