"""What the shells of router, worker, controller and link share: loop, heartbeat, requests, an orderly end.

A process of a node is a state machine (pure) plus a shell (sockets). This module is the part of the shell
that is the same everywhere: the poll loop on the monotonic clock, the signal flag, the heartbeat to the
supervisor, the connection to the controller, and the end when the supervisor is gone. It knows nothing about
messages, clients or topics, and the client SDK does not import it.

A process is started as `python -m <package> --runtime DIR --index I --incarnation K`. The runtime directory
(mode 0700, short, made and removed by the supervisor) holds the sockets and one configuration file per role:

    <runtime>/supervisor   ROUTER of the supervisor: heartbeats up, the table of processes down
    <runtime>/control      ROUTER of the controller: requests and events
    <runtime>/admin        ROUTER of the controller: the admin API of the command line
    <runtime>/workers      ROUTER of the router: the workers
    <runtime>/router.json, <runtime>/worker.json, <runtime>/controller.json   what `load_config` reads

Frames on the first two are those of `angarium_server.frames.control`.

A request may be answered later: its handler returns a `DeferredReply`, which is given to `reply` when the answer is
known.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import zmq

from angarium import errors
from angarium_server.frames.control import (
    Ask,
    Control,
    Events,
    FromController,
    Heartbeat,
    Hello,
    Processes,
    Reply,
    Request,
    Scale,
    StopNode,
    Table,
    TableRow,
)
from angarium_server.frames.frame import MalformedFrameError, decoder, encode, read
from angarium_server.frames.shipping import Order
from angarium_server.memory.memory import keep_freed_memory
from angarium_server.watch import Handler, Watch

#: A hang is told after 5 s, so ten beats may be late before anybody worries.
HEARTBEAT_INTERVAL_S: Final = 0.5
#: A controller that was restarted knows every process again within this time.
HELLO_INTERVAL_S: Final = 1.0
#: While there is no controller; a router waits for its configuration at its start.
HELLO_RETRY_S: Final = 0.02
#: Where nobody listens yet is tried again after the first of these, and after up to the second: clients wait for a
#: router that has not found its controller.
RECONNECT_MS: Final = 10
RECONNECT_MAX_MS: Final = 100
#: After this long the loop ends although `stop()` does not say drained: the supervisor would kill the process
#: anyway.
DRAIN_LIMIT_S: Final = 10.0
#: Events that wait for a controller; the oldest is lost first, because the newest explains the present.
PENDING_EVENTS_MAX: Final = 1_000
#: A frame is judged in one step.
EVENTS_PER_FRAME: Final = 100
#: A process that may not act looks so often whether it may.
WITHOUT_LEASE_S: Final = 0.01
#: How long the controller's answer to an `ask` is waited for: longer than it waits for others on the way.
ASK_TIMEOUT_S: Final = 8.0
#: Asks without an answer; one more is refused at once.
PENDING_ASKS_MAX: Final = 10_000
#: Control frames taken in one poll round, so that a flood of requests cannot starve the data sockets.
CONTROL_FRAMES_PER_ROUND: Final = 100
#: What is sent last (the reply, the event of the end) may take this long to leave.
LINGER_MS: Final = 200

#: Tells a child who its supervisor is, so that a supervisor that died before the child's first look is
#: noticed.
SUPERVISOR_PID_VARIABLE: Final = "ANGARIUM_SUPERVISOR_PID"
#: The least severity that a process logs; the supervisor hands it on.
LOG_LEVEL_VARIABLE: Final = "ANGARIUM_LOG_LEVEL"

STATE_STARTING: Final = "starting"
STATE_READY: Final = "ready"
STATE_STOPPING: Final = "stopping"

#: Exit status of a process whose supervisor is gone.
EXIT_ORPHANED: Final = 3

#: In the runtime directory of a host that has a keeper: the address of its socket.
KEEPER_FILE: Final = "keeper"
#: Tells a node, when it is started, that a keeper started it, and where that is.
KEEPER_VARIABLE: Final = "ANGARIUM_KEEPER"
#: ... and its process, with which the node ends.
KEEPER_PID_VARIABLE: Final = "ANGARIUM_KEEPER_PID"
#: What a keeper writes to the standard input of a node, which waits for it before it touches its data.
KEEPER_WORD: Final = b"begin\n"
#: How often a process says that it is there: a keeper that was started again has to hear of it.
LEASE_HELLO_S: Final = 0.5
_HELLO: Final = b"h"

_PR_SET_PDEATHSIG: Final = 1
_LOG_FORMAT: Final = "%(asctime)s {name} %(levelname)s %(message)s"

_decode_order = decoder(Order)
_decode_table = msgspec.msgpack.Decoder(Table).decode
_decode_control: Callable[[bytes], FromController] = msgspec.msgpack.Decoder(FromController).decode
_log = logging.getLogger(__name__)

ConfigT = TypeVar("ConfigT")
T = TypeVar("T")
RequestHandler = Callable[[str, Any], Any]
#: Gets (ok, value) as `Process.ask` says.
AnswerHandler = Callable[[bool, Any], None]


class DeferredReply:
    """What a request handler returns to answer later, with `Process.reply`; it is good for one answer."""

    __slots__ = ("answer", "number")

    def __init__(self) -> None:
        #: Of the request; None until its handler has returned.
        self.number: int | None = None
        #: What `reply` was given before the handler returned.
        self.answer: tuple[bool, Any] | None = None


class _Asked(NamedTuple):
    """An `ask` that is not answered yet."""

    frame: Ask
    callback: AnswerHandler
    deadline: float


def configure_logging(role: str, index: int | None, level: str = "INFO") -> None:
    """Make log lines of this process start with its role and index; they go to standard error."""
    name = role if index is None else f"{role}.{index}"
    logging.basicConfig(
        level=level.upper(), format=_LOG_FORMAT.format(name=name), stream=sys.stderr, force=True
    )


def load_config(runtime_dir: str | os.PathLike[str], role: str, kind: type[ConfigT]) -> ConfigT:
    """Read the configuration that the supervisor wrote for a role.

    Raises:
        InvalidRequestError: the file is missing or does not fit (40017).
    """
    path = Path(runtime_dir) / f"{role}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise errors.InvalidRequestError(errors.INVALID_CONFIGURATION, f"{path}: {error}") from error


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends; off Linux the heartbeat's look must do."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        _log.warning(
            "cannot be told of the death of its parent by the kernel: %s", os.strerror(ctypes.get_errno())
        )


class Lease:
    """The lease of this host, as its keeper tells it: what lets a process act where another host may be the primary.

    Such a process acts as long as the lease lasts, and does nothing but its duties when it is over: it neither reads
    what clients send nor what others answer. So a primary that another host may have replaced neither acknowledges nor
    delivers (R266). A process that did not run for a while looks at the clock before anything else.
    """

    def __init__(self, socket: zmq.Socket[bytes], touch: Callable[[], None] = lambda: None) -> None:
        """Have none yet.

        Args:
            socket: connected to the keeper.
            touch: called when something was sent on it: what came meanwhile may have no signal any more.
        """
        self.socket = socket
        self._touch = touch
        self.order = Order(epoch=0, acts_until=0.0, required_by=None)
        self._hello_at = 0.0

    def holds(self) -> bool:
        """Tell whether this host may act: by the clock that goes on while a host sleeps, and that nobody sets."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) < self.order.acts_until

    def tell(self, frames: list[bytes]) -> None:
        """Tell the keeper something; without one it is lost."""
        self._touch()
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return

    def tick(self, now: float) -> None:
        """Say that this process is there."""
        if now >= self._hello_at:
            self._hello_at = now + LEASE_HELLO_S
            self.tell([_HELLO])

    def receive(self) -> bool:
        """Take what the keeper says; for the loop."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            if frames[0] != Order.operation:
                raise MalformedFrameError(f"operation {frames[0]!r} of the keeper")
            self.order = read(_decode_order, frames)


class Process:
    """One process of a node, from its first heartbeat to its last.

    Use: make it, register sockets and handlers, call `progress` while starting, `ready` when work can be
    taken, `run`.
    """

    def __init__(self, role: str, index: int, incarnation: int, runtime_dir: str | os.PathLike[str]) -> None:
        """Connect to the supervisor, and to the controller unless this is the controller."""
        #: Its kind; with `index` it names a place that at most one live process holds.
        self.role = role
        self.index = index
        #: Higher than that of every earlier process of this node, over restarts of the node too.
        self.incarnation = incarnation
        self.runtime_dir = Path(runtime_dir)
        #: Sockets of the shell belong to it too, so that one call closes all.
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        #: Set by SIGTERM and SIGINT, or by the shell; never unset.
        self.stopping = False
        self._state = STATE_STARTING
        self._progress = ""
        self._info: dict[str, Any] = {}
        self._watch = Watch()
        self._request_handler: RequestHandler | None = None
        self._table_handler: Callable[[Sequence[TableRow]], None] | None = None
        self._node_handler: Callable[[dict[str, Any]], None] | None = None
        #: Events not yet handed to a connected controller, oldest first.
        self._pending_events: deque[dict[str, Any]] = deque(maxlen=PENDING_EVENTS_MAX)
        #: Number -> ask without an answer, the oldest first, so that deadlines rise.
        self._asked: dict[int, _Asked] = {}
        #: Numbers of `_asked` that no controller has got yet, the oldest first.
        self._unsent_asks: deque[int] = deque()
        self._next_ask = 1
        #: Incarnation of the controller as the supervisor told it last; 0 before the first time.
        self._controller = 0
        self._next_heartbeat = 0.0
        self._next_hello = 0.0
        #: The earlier of the two.
        self._next_duty = 0.0
        #: What lets this process act; None: nobody else can be the primary.
        self.lease: Lease | None = None
        self._parent = self._adopt_parent()
        self._supervisor = self._connect("supervisor", immediate=False)
        self.add(self._supervisor, self._read_supervisor)
        self._control: zmq.Socket[bytes] | None = None
        if role != "controller":
            self._control = self._connect("control", immediate=True)
            self.add(self._control, self._read_control)
        self._send_heartbeat()

    # -- registration ----------------------------------------------------------------------------------------

    def add(self, socket: zmq.Socket[bytes] | int, handler: Handler) -> None:
        """Have `handler()` called while the socket or descriptor is readable.

        It bounds its work, and gives True unless the last that it did with the socket was to find it empty. Who sends
        on the socket elsewhere says so with `touch`.
        """
        self._watch.add(socket, handler)

    def touch(self, socket: zmq.Socket[bytes]) -> None:
        """Note that something was sent on a socket that was added."""
        self._watch.touch(socket)

    def await_room(self, watched: int, *, wanted: bool) -> None:
        """Have the handler of a descriptor called also while it is writable, or no longer."""
        self._watch.await_room(watched, wanted=wanted)

    def pause(self, watched: int, *, is_room_wanted: bool) -> None:
        """Call the handler of a descriptor while it is writable only, or once at its end; `await_room` ends that."""
        self._watch.pause(watched, is_room_wanted=is_room_wanted)

    def remove(self, socket: zmq.Socket[bytes] | int) -> None:
        """Forget a socket before it is closed."""
        self._watch.remove(socket)

    def on_request(self, handler: RequestHandler) -> None:
        """Have `handler(operation, arguments)` answer the controller; it may raise an AngariumError."""
        self._request_handler = handler

    def on_table(self, handler: Callable[[Sequence[TableRow]], None]) -> None:
        """Have `handler(rows)` called on change and each second; rows as in the frames above."""
        self._table_handler = handler

    def on_node(self, handler: Callable[[dict[str, Any]], None]) -> None:
        """Have `handler(node)` called with what is known of the node: all for the controller."""
        self._node_handler = handler

    def obey(self) -> None:
        """Act only as long as the keeper of this host says so, if it has one."""
        place = self.runtime_dir / KEEPER_FILE
        if not place.exists():
            return
        keeper = self._connect(place.read_text(encoding="utf-8"), immediate=True)
        lease = self.lease = Lease(keeper, partial(self._watch.touch, keeper))
        self._watch.add(keeper, lease.receive)
        self._watch.close_while(lambda: not lease.holds(), (self._supervisor, keeper))

    # -- telling ---------------------------------------------------------------------------------------------

    def progress(self, text: str) -> None:
        """Tell the supervisor that start-up goes on; without such news a start is taken for hung."""
        self._progress = text
        self._check_parent()
        self._send_heartbeat()

    def ready(self, info: dict[str, Any]) -> None:
        """Tell the supervisor that this process takes work; the router's info holds {"urls": [...]}."""
        self._state = STATE_READY
        self._progress = ""
        self._info = info
        self._send_heartbeat()

    def emit_event(self, event: dict[str, Any]) -> None:
        """Hand an event {"severity", "scope", "event", "text", ...} to the controller, with its origin.

        It leaves at the end of the turn, with all others: many clients that come at once cost no frame each.
        """
        stamped = {"time": utc_now(), **event, "role": self.role, "index": self.index}
        self._pending_events.append(stamped)
        self._next_duty = 0.0

    def ask(self, operation: str, arguments: Any, callback: AnswerHandler) -> None:
        """Ask the controller; `callback(ok, value)` is called once, from the loop.

        A refusal has `ok` false and the value [code, detail]; without a controller, or without its answer in time, the
        code is 50321, and whether it was done is unknown. With too many asks out it is called before this returns.
        """
        assert self._control is not None, "the controller does not ask itself"
        if len(self._asked) >= PENDING_ASKS_MAX:
            detail = f"{PENDING_ASKS_MAX} questions wait for its answer"
            callback(False, [errors.CONTROLLER_UNAVAILABLE, detail])  # noqa: FBT003 - the form of every answer
            return
        number = self._next_ask
        self._next_ask += 1
        frame = Ask(number, operation, arguments)
        if not _can_be_packed(frame):
            detail = f"{operation} has arguments that cannot be told the controller"
            callback(False, [errors.INVALID_ARGUMENT, detail])  # noqa: FBT003 - the form of every answer
            return
        self._asked[number] = _Asked(frame, callback, time.monotonic() + ASK_TIMEOUT_S)
        self._unsent_asks.append(number)
        self._send_asks()

    def reply(self, deferred: DeferredReply, ok: bool, value: Any) -> None:  # noqa: FBT001 - the form of every answer
        """Answer a request whose handler returned a `DeferredReply`; a refusal has the value [code, detail]."""
        if deferred.number is None:
            deferred.answer = (ok, value)
        else:
            self._reply(deferred.number, ok, value)

    def request_stop(self) -> None:
        """Ask the supervisor to stop the node in order (used by the controller)."""
        self._send(self._supervisor, StopNode())

    def request_scale(self, workers: int) -> None:
        """Ask the supervisor for another number of workers (used by the controller)."""
        self._send(self._supervisor, Scale(workers))

    def request_processes(self, role: str, indices: list[int]) -> None:
        """Ask the supervisor for processes of a role with these indices and no others (used by the controller)."""
        self._send(self._supervisor, Processes(role, indices))

    # -- the loop --------------------------------------------------------------------------------------------

    def run(self, tick: Callable[[float], float | None], stop: Callable[[], bool]) -> None:
        """Run until asked to stop and drained.

        Args:
            tick: called with the monotonic time after every poll round, at the latest once per heartbeat; returns in
                how many seconds it wants to be called again, or None if that is soon enough.
            stop: called after each tick once `stopping` is set; True means drained. It is not waited for longer than
                DRAIN_LIMIT_S.
        """
        with waking_signals(self._note_signal, signal.SIGTERM, signal.SIGINT) as descriptor:
            self.add(descriptor, lambda: drain(descriptor))
            try:
                self._loop(tick, stop)
            finally:
                self.remove(descriptor)

    @property
    def descriptor(self) -> int:
        """Is readable when a turn is due, for a process that sleeps in a loop of somebody else's."""
        return self._watch.descriptor

    def turn(self) -> float:
        """Do what is due, as `run` would in one turn, and sleep not; gives in how many seconds to do so again.

        Who sends on a socket of the process has another turn at once.
        """
        self._watch.wait(0.0)
        now = time.monotonic()
        if self.stopping and self._state != STATE_STOPPING:
            self._begin_stopping(now)
        if now >= self._next_duty:
            self._do_duties(now)
        return 0.0 if self._watch.is_doubtful else max(0.0, self._next_duty - now)

    def close(self) -> None:
        """Close every socket of the context, after what was sent last had a moment to leave."""
        self._send_events()
        self.context.destroy(linger=LINGER_MS)
        self._watch.close()

    def _loop(self, tick: Callable[[float], float | None], stop: Callable[[], bool]) -> None:
        monotonic = time.monotonic
        wait = self._watch.wait
        deadline: float | None = None
        wait_s = 0.0
        while True:
            wait(wait_s)
            now = monotonic()
            asked = tick(now) if self.lease is None or self.lease.holds() else WITHOUT_LEASE_S
            if now >= self._next_duty:
                self._do_duties(now)
            if self.stopping:
                deadline = self._begin_stopping(now) if deadline is None else deadline
                if stop() or now >= deadline:
                    return
            wait_s = self._next_duty - now
            if asked is not None and asked < wait_s:
                wait_s = asked if asked > 0.0 else 0.0

    def beat(self, now: float) -> None:
        """Tell the supervisor, if that is due, that this process works; a long step does so in its middle."""
        if now >= self._next_heartbeat:
            self._check_parent()
            self._next_heartbeat = now + HEARTBEAT_INTERVAL_S
            self._send_heartbeat()

    def _note_signal(self, _number: int) -> None:
        self.stopping = True

    def _begin_stopping(self, now: float) -> float:
        self._state = STATE_STOPPING
        self._send_heartbeat()
        return now + DRAIN_LIMIT_S

    def _do_duties(self, now: float) -> None:
        """Do what is due towards supervisor and controller."""
        self.beat(now)
        self._next_duty = self._next_heartbeat
        if self.lease is not None:
            self.lease.tick(now)
        if self._control is None:
            return
        if now >= self._next_hello:
            hello = Hello(self.role, self.index, self.incarnation, os.getpid())
            told = self._send(self._control, hello)
            self._next_hello = now + (HELLO_INTERVAL_S if told else HELLO_RETRY_S)
            self._send_asks()
        self._send_events()
        self._give_up_asks(now)
        self._next_duty = min(self._next_heartbeat, self._next_hello)

    # -- sockets ---------------------------------------------------------------------------------------------

    def _connect(self, place: str, *, immediate: bool) -> zmq.Socket[bytes]:
        """Connect to a socket in the runtime directory, or to one with an address of its own."""
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, f"{self.role}-{self.index}-{self.incarnation}".encode())
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        # The controller may be restarted: nothing is queued for one that is not there, the hello is repeated
        # instead.
        socket.setsockopt(zmq.IMMEDIATE, int(immediate))
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        socket.connect(place if "://" in place else f"ipc://{self.runtime_dir}/{place}")
        return socket

    def _send(self, socket: zmq.Socket[bytes], frame: Control) -> bool:
        """Send without waiting; False if there is nobody or its queue is full."""
        self._watch.touch(socket)
        try:
            socket.send(frame.packed(), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _send_heartbeat(self) -> None:
        name = (self.role, self.index, self.incarnation)
        self._send(self._supervisor, Heartbeat(*name, self._state, self._progress, self._info))

    def _send_events(self) -> None:
        pending = self._pending_events
        while pending and self._control is not None:
            some = [*islice(pending, EVENTS_PER_FRAME)]
            if not self._send(self._control, Events(some)):
                return
            for _ in some:
                pending.popleft()

    def _send_asks(self) -> None:
        unsent = self._unsent_asks
        while unsent and self._control is not None:
            asked = self._asked.get(unsent[0])
            if asked is not None and not self._send(self._control, asked.frame):
                return
            unsent.popleft()

    def _give_up_asks(self, now: float) -> None:
        """Refuse what the controller did not answer in time."""
        overdue = []
        for number, asked in self._asked.items():
            if asked.deadline > now:
                break
            overdue.append(number)
        for number in overdue:
            detail = f"it did not answer within {ASK_TIMEOUT_S:g} s"
            self._answered(number, False, [errors.CONTROLLER_UNAVAILABLE, detail])  # noqa: FBT003 - as above

    def _note_controller(self, rows: Sequence[TableRow]) -> None:
        """Refuse what was asked of a controller that is gone: its successor does not know of it."""
        incarnation = next((row.incarnation for row in rows if row.role == "controller"), self._controller)
        earlier, self._controller = self._controller, incarnation
        if earlier in (0, incarnation):
            return
        for number in [number for number in self._asked if number not in self._unsent_asks]:
            detail = "it was restarted before it answered"
            self._answered(number, False, [errors.CONTROLLER_UNAVAILABLE, detail])  # noqa: FBT003 - as above

    def _answered(self, number: int, ok: bool, value: Any) -> None:  # noqa: FBT001 - the form of every answer
        asked = self._asked.pop(number, None)
        if asked is not None:
            asked.callback(ok, value)

    def _read_supervisor(self) -> bool:
        frames = _receive(self._supervisor, _decode_table)
        for frame in frames:
            self._note_controller(frame.rows)
            if self._table_handler is not None:
                self._table_handler(frame.rows)
            if self._node_handler is not None:
                self._node_handler(frame.node)
        return bool(frames)

    def _read_control(self) -> bool:
        assert self._control is not None
        frames = _receive(self._control, _decode_control)
        for frame in frames:
            if isinstance(frame, Request):
                self._take_request(frame.number, frame.operation, frame.arguments)
            else:
                self._answered(frame.number, frame.ok, frame.value)
        return bool(frames)

    def _take_request(self, number: int, operation: str, arguments: Any) -> None:
        ok, value = self._answer(operation, arguments)
        if isinstance(value, DeferredReply):
            value.number = number
            if value.answer is None:
                return
            ok, value = value.answer
        self._reply(number, ok, value)

    def _reply(self, number: int, ok: bool, value: Any) -> None:  # noqa: FBT001 - the form of every answer
        if not _can_be_packed(value):
            _log.error("the answer to request %d cannot be packed", number)
            ok, value = False, [errors.INTERNAL, "the answer cannot be packed"]
        if self._control is not None:
            self._send(self._control, Reply(number, ok, value))

    def _answer(self, operation: str, arguments: Any) -> tuple[bool, Any]:
        """Give (ok, value); a refusal has the value [code, detail], a promise is a `DeferredReply`."""
        if operation == "log_level":
            logging.getLogger().setLevel(str(arguments).upper())
            return True, None
        try:
            if self._request_handler is None:
                raise errors.InvalidRequestError(errors.UNKNOWN_OPERATION, operation)
            return True, self._request_handler(operation, arguments)
        except errors.AngariumError as error:
            return False, [error.code, error.detail]

    # -- the parent ------------------------------------------------------------------------------------------

    def _adopt_parent(self) -> int:
        """Give the pid that has to stay our parent; a process started by hand takes the one it has."""
        told = os.environ.get(SUPERVISOR_PID_VARIABLE)
        if told is None:
            return os.getppid()
        die_with_parent()
        if os.getppid() != int(told):
            raise SystemExit(EXIT_ORPHANED)
        return int(told)

    def _check_parent(self) -> None:
        if os.getppid() != self._parent:
            _log.error("the supervisor (pid %d) is gone, so this process ends", self._parent)
            raise SystemExit(EXIT_ORPHANED)


@contextmanager
def at_work(role: str, arguments: Sequence[str] | None = None) -> Iterator[Process]:
    """Give the process that `--runtime DIR --index I --incarnation K` describes, with its log set up; then close it.

    An AngariumError is why it cannot work: it is logged, shown by 'angarium status' until the next start, and ends it.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {role}", description=f"The {role} process of a node.")
    parser.add_argument("--runtime", required=True, help="the runtime directory that the supervisor made")
    parser.add_argument("--index", type=int, default=0, help="the place among the processes of this role")
    parser.add_argument("--incarnation", type=int, default=1, help="the number of this start")
    options = parser.parse_args(arguments)
    configure_logging(role, options.index, os.environ.get(LOG_LEVEL_VARIABLE, "INFO"))
    keep_freed_memory()
    process = Process(role, options.index, options.incarnation, options.runtime)
    try:
        yield process
    except errors.AngariumError as error:
        _log.critical("this %s cannot work: %s", role, error)
        process.progress(f"cannot work: {error}")
        raise SystemExit(1) from None
    finally:
        process.close()


@contextmanager
def waking_signals(note: Callable[[int], None], *numbers: signal.Signals) -> Iterator[int]:
    """Give a descriptor that is readable after some signals, which are noted; their earlier handlers come back."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    earlier_descriptor = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    earlier = {number: signal.signal(number, lambda received, _frame: note(received)) for number in numbers}
    try:
        yield reader
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(earlier_descriptor)
        os.close(reader)
        os.close(writer)


def drain(descriptor: int) -> None:
    """Read what there is."""
    with suppress(BlockingIOError):
        while os.read(descriptor, 512):
            pass


def utc_now() -> str:
    """Give the wall time of an event as ISO 8601 in UTC with milliseconds: 2031-05-04T10:11:12.345Z."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _can_be_packed(value: Any) -> bool:
    """Tell whether a value can be sent; one that cannot must not end the process that was to send it."""
    try:
        encode(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _receive(socket: zmq.Socket[bytes], decode: Callable[[bytes], T]) -> list[T]:
    """Take what is there; a frame that is none is a fault of the process that sent it, and is dropped."""
    frames: list[T] = []
    for _ in range(CONTROL_FRAMES_PER_ROUND):
        try:
            frames.append(decode(socket.recv(zmq.NOBLOCK)))
        except zmq.Again:
            break
        except (ValueError, RecursionError) as error:
            _log.error("a frame cannot be read and is dropped: %s", error)
    return frames
