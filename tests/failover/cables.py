"""Three hosts as one machine can have them: network namespaces, joined by cables that can be cut in one direction.

Host `a` and host `b` are the pair; in `c` are the clients and the outside store. Each purpose has a cable of its own,
so that a host may lose its clients and keep the outside store, or the other way round:

    pair     a -- b     what a primary ships to its standby
    clients  a -- c, b -- c
    store    a -- c, b -- c

A direction is cut where it begins, by a queue that takes no packet: nobody is told, as when a cable is pulled behind a
switch. A cable that is unplugged tells both ends.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: As in 10.91.X.1 and 10.91.X.2.
_NETWORK: Final = "10.91"
HOSTS: Final = ("a", "b")
OUTSIDE: Final = "c"
_NEW_NETWORK: Final = 0x4000_0000
#: The smallest packet is longer than this.
_NOTHING: Final = ("tbf", "rate", "8bit", "burst", "1", "limit", "1")


class Cable(NamedTuple):
    """Between two namespaces; the first end has address 1, the second address 2."""

    name: str
    ends: tuple[str, str]
    network: int

    def address(self, space: str) -> str:
        """Give the address of one end."""
        return f"{_NETWORK}.{self.network}.{self.ends.index(space) + 1}"


CABLES: Final = (
    Cable("pair", ("a", "b"), 0),
    Cable("clients", ("a", "c"), 1),
    Cable("clients", ("b", "c"), 2),
    Cable("store", ("a", "c"), 3),
    Cable("store", ("b", "c"), 4),
)


class Way(NamedTuple):
    """One direction of a cable."""

    cable: int
    sender: str


def ways(host: str, purposes: tuple[str, ...] = ("pair", "clients", "store")) -> list[Way]:
    """Give both directions of the cables of a host, those out first."""
    own = [index for index, cable in enumerate(CABLES) if host in cable.ends and cable.name in purposes]
    out = [Way(index, host) for index in own]
    back = [Way(index, next(end for end in CABLES[index].ends if end != host)) for index in own]
    return out + back


def missing() -> str:
    """Say why there are no namespaces here; nothing if there may be some."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "there is no 'ip' or 'tc' command here (iproute2)"
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    made = Cables()
    try:
        made.build()
        made.cut([Way(0, "a")])
        made.heal()
    except subprocess.CalledProcessError as error:
        return f"network namespaces with cables are not allowed here: {error.stderr.strip()}"
    finally:
        made.remove()
    return ""


class Cables:
    """The namespaces, and what is cut of their cables."""

    def __init__(self) -> None:
        """Make nothing yet."""
        mark = secrets.token_hex(3)
        self.spaces = {name: f"angarium-{mark}-{name}" for name in (*HOSTS, OUTSIDE)}
        self._cut: set[Way] = set()
        self._unplugged: set[int] = set()

    def build(self) -> None:
        """Make the namespaces and the cables."""
        for space in self.spaces.values():
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
        for index, cable in enumerate(CABLES):
            one, other = (self.spaces[end] for end in cable.ends)
            _run(
                *("ip", "link", "add", f"cable{index}", "netns", one, "type", "veth"),
                *("peer", "name", f"cable{index}", "netns", other),
            )
            for end in cable.ends:
                address = f"{cable.address(end)}/24"
                _run("ip", "-n", self.spaces[end], "address", "add", address, "dev", f"cable{index}")
                _run("ip", "-n", self.spaces[end], "link", "set", f"cable{index}", "up")

    def command(self, space: str, command: list[str]) -> list[str]:
        """Give the command that runs another one in a namespace."""
        return ["ip", "netns", "exec", self.spaces[space], *command]

    def within(self, space: str, call: Callable[[], T]) -> T:
        """Call something in a namespace; with a thread of its own, for a namespace is a thread's."""
        with ThreadPoolExecutor(1, initializer=_enter, initargs=(self.spaces[space],)) as pool:
            return pool.submit(call).result()

    def cut(self, cut: list[Way]) -> None:
        """Let nothing pass these ways."""
        for way in cut:
            if way not in self._cut:
                self._cut.add(way)
                self._queue(way, "add", *_NOTHING)

    def unplug(self, cables: list[int]) -> None:
        """Pull cables out; both ends see it."""
        for index in cables:
            self._unplugged.add(index)
            self._set(index, "down")

    def heal(self) -> None:
        """Have everything as it was."""
        for way in sorted(self._cut):
            self._queue(way, "del")
        for index in sorted(self._unplugged):
            self._set(index, "up")
        self._cut.clear()
        self._unplugged.clear()

    def _queue(self, way: Way, verb: str, *queue: str) -> None:
        device = f"cable{way.cable}"
        _run("tc", "-n", self.spaces[way.sender], "qdisc", verb, "dev", device, "root", *queue)

    def _set(self, index: int, state: str) -> None:
        space = self.spaces[CABLES[index].ends[0]]
        _run("ip", "-n", space, "link", "set", f"cable{index}", state)

    def remove(self) -> None:
        """Remove what there is; a cable goes with its ends."""
        for space in self.spaces.values():
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True, timeout=10)


def _enter(space: str) -> None:
    descriptor = os.open(f"/run/netns/{space}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"setns {space}")
    finally:
        os.close(descriptor)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout
