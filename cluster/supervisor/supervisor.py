"""The supervisor's decisions: who is started, who is dead or hung, when to try again, in which order all end.

A pure state machine: events in (a heartbeat, an exit, the clock, a wish to stop), effects out (spawn, kill,
announce the table, tell an event). It owns no process, socket, clock or file; `cluster/supervisor/server.py` does and
carries the effects out. It does nothing else: configuration belongs to the controller, messages to router and
workers.

Life of a place (role, index):

    restarting --spawn--> starting --heartbeat "ready"--> ready --5 s of silence--> hung, killed
        ^                    |                              |                           |
        +----- back-off -----+------------- exit -----------+---------------------------+

A hung process is killed although it might come back: the others have gone on without it meanwhile.

The back-off doubles from 0.1 s to 5 s with every death, and every five seconds of health take one doubling
back, so that thirty healthy seconds forget everything and a process killed once is back at once. A place that
dies too often in a row stays stopped; without the router a node is nothing, so the router's last death stops
the node. How roles differ is in `cluster.roster.table`.

A supervisor that was itself late (paused, starved) knows nothing about the silence of others during that
time: the gap is added to everybody's last sign of life. The idea of telling hung from dead by pings is
uvicorn's (`supervisors/multiprocess.py`); back-off and limit are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from angarium_server.frames.control import TableRow
from cluster.roles.role import Indices
from cluster.roster.table import ROLES, ROUTER, STOP_ORDER, WORKER

#: Silence of a started process after which it is called hung.
HUNG_AFTER_S: Final = 5.0
#: Start-up reports progress instead of heartbeats; opening a large spool reports far more often than this.
START_SILENCE_MAX_S: Final = 30.0
#: A tick that comes later than this was not only busy: the supervisor itself did not run.
LATE_AFTER_S: Final = 1.0
#: First wait before a restart, and the longest one.
BACK_OFF_FIRST_S: Final = 0.1
BACK_OFF_MAX_S: Final = 5.0
#: So many seconds of health take one doubling of the back-off back (6 doublings: 30 s).
FORGIVE_AFTER_S: Final = 5.0
#: Doublings between the first and the longest wait.
_DOUBLINGS_MAX: Final = 6
#: Deaths in a row, with no health between them, after which a place stays stopped: about 80 s of trying.
DEATHS_MAX: Final = 20
#: Before the node was ready once, a process that cannot start is a wrong configuration, and waiting helps
#: nobody.
FIRST_START_DEATHS_MAX: Final = 3
#: How long a process may take to stop after it was asked to; a little more than
#: `angarium_server.process.DRAIN_LIMIT_S`.
STOP_AFTER_S: Final = 12.0
#: The longest pause between two looks at the clock.
TICK_MAX_S: Final = 0.5

STARTING: Final = "starting"
READY: Final = "ready"
HUNG: Final = "hung"
RESTARTING: Final = "restarting"
STOPPED: Final = "stopped"

#: The exit status of a node that could not go on.
STATUS_FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start the process of a place; answer with `spawned`."""

    role: str
    index: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask a process to stop (SIGTERM)."""

    role: str
    index: int
    pid: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End a process at once (SIGKILL)."""

    role: str
    index: int
    pid: int


@dataclass(frozen=True, slots=True)
class Announce:
    """The table changed: tell every process."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Something operators want to know happened."""

    severity: str
    event: str
    text: str
    role: str
    index: int


@dataclass(frozen=True, slots=True)
class NodeReady:
    """Every process is ready, for the first time: clients can connect."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The router bound its addresses: keep them for every later router."""

    urls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Every process is gone: end with this status."""

    status: int


Effect = Spawn | Terminate | Kill | Announce | Tell | NodeReady | Bound | Finish


class Place:
    """One role and index, and the process that holds it now."""

    def __init__(self, role: str, index: int) -> None:
        self.role = role
        self.index = index
        #: STARTING, READY and HUNG exactly while a process lives, RESTARTING while the next one is due.
        self.state = RESTARTING
        #: Of the live process, or of the last one; rises with every spawn.
        self.incarnation = 0
        #: Of the live process; 0 without one.
        self.pid = 0
        #: Times a process of this place was started again.
        self.restarts = 0
        #: Deaths that health has not forgiven yet; decides the back-off.
        self.deaths = 0
        #: When the next process is due; only meaningful while RESTARTING.
        self.due = 0.0
        #: Last sign of life, moved on by the time the supervisor itself did not run.
        self.heard = 0.0
        #: When the live process became ready, moved on by the health that forgave deaths; None before.
        self.ready_since: float | None = None
        #: When it was asked to stop or killed; None before.
        self.stop_asked: float | None = None
        #: True once SIGKILL was sent to the live process.
        self.killed = False
        #: True once the number of workers shrank below it and the router let it go: it is not started again.
        self.leaving = False
        self.progress = ""
        self.info: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """Give role and index as logs and events spell them."""
        return f"{self.role}.{self.index}"

    def row(self) -> TableRow:
        """Give the row of the table that every process gets."""
        return TableRow(self.role, self.index, self.incarnation, self.state, self.pid)

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        lives = self.state in (STARTING, READY, HUNG)
        assert lives == (self.pid != 0), f"{self.name}: {self.state}, pid {self.pid}"
        assert self.state != READY or self.ready_since is not None, f"{self.name} is ready since never"
        assert 0 <= self.deaths <= DEATHS_MAX, f"{self.name}: {self.deaths} deaths"
        assert not self.killed or self.pid != 0, f"{self.name}: killed without a process"


class Supervisor:
    """All places of a node. Every method that takes `now` returns the effects to carry out, in order."""

    def __init__(self, places: list[tuple[str, int]], first_incarnation: int) -> None:
        """Make the table; `start` begins to fill it."""
        #: In the order in which processes are started; each key is there once.
        self.places = {key: Place(*key) for key in places}
        #: The number of the next spawn; never used twice by a node.
        self._next_incarnation = first_incarnation
        #: Set once every place was ready at the same time; never unset.
        self.was_ready = False
        #: Set by `stop` or a failure; then nothing is spawned any more.
        self.stopping = False
        #: When everything is stopped; None before anybody asked for it.
        self._stop_due: float | None = None
        self._status = 0
        self._finished = False
        #: When `tick` ran last; None before the first time.
        self._ticked: float | None = None
        #: What the router bound at first; later routers are held to it.
        self.urls: tuple[str, ...] = ()
        #: Indices that are wanted, by role; who leaves keeps its place until its process is gone.
        self._wanted = {role: [at for of, at in places if of == role] for role in ROLES}

    @property
    def workers(self) -> int:
        """Give the wanted number of workers."""
        return len(self._wanted[WORKER.name])

    def scale(self, workers: int, now: float) -> list[Effect]:
        """Change the number of workers: start what is missing; the others go once the router does without them."""
        assert workers >= 1
        if self.stopping or workers == self.workers:
            return []
        self._wanted[WORKER.name] = list(range(workers))
        return [*self._fill(WORKER.name, now), Announce()]

    def want(self, role: str, indices: list[int], now: float) -> list[Effect]:
        """Have a process of this role for each of these indices and for no other; who goes is asked to stop."""
        assert ROLES[role].indices is Indices.OBJECTS
        self._wanted[role] = list(dict.fromkeys(indices))
        if self.stopping:
            return []
        effects = [*self._fill(role, now), *self._let_go(role, now)]
        return [*effects, Announce()] if effects else []

    def _fill(self, role: str, now: float) -> list[Effect]:
        """Start what is wanted and has no place."""
        effects: list[Effect] = []
        for index in self._wanted[role]:
            if (role, index) not in self.places:
                place = self.places[role, index] = Place(role, index)
                place.heard = now
                effects += self._spawn(place)
        return effects

    def _let_go(self, role: str, now: float) -> list[Effect]:
        """End what is not wanted any more."""
        effects: list[Effect] = []
        for key, place in list(self.places.items()):
            if place.role != role or place.index in self._wanted[role] or place.leaving:
                continue
            if not place.pid:
                del self.places[key]
                continue
            place.leaving = True
            place.stop_asked = now
            effects.append(Terminate(role, place.index, place.pid))
        return effects

    def start(self, now: float) -> list[Effect]:
        """Spawn everything."""
        self._ticked = now
        return [effect for place in self.places.values() for effect in self._spawn(place)]

    def spawned(self, role: str, index: int, pid: int, now: float) -> list[Effect]:
        """Note that the process that `Spawn` asked for exists."""
        place = self.places[role, index]
        assert place.pid == 0, f"{place.name} was spawned twice"
        place.pid = pid
        place.state = STARTING
        place.heard = now
        place.progress = ""
        return [Announce()]

    def heartbeat(
        self, role: str, index: int, incarnation: int, told: tuple[str, str, dict[str, Any]], now: float
    ) -> list[Effect]:
        """Take a sign of life, told = (state, progress, info); one of a process that is gone is dropped."""
        place = self.places.get((role, index))
        if place is None or place.incarnation != incarnation or place.pid == 0 or place.killed:
            return []
        earlier_progress = place.progress
        state, place.progress, info = told
        before = place.state
        # A start must report progress: the same words for ever are no sign of life.
        if state != "starting" or told[1] != earlier_progress or before != STARTING:
            place.heard = now
        effects: list[Effect] = []
        if state == "starting":
            place.state = STARTING
        else:
            place.info = info
            place.state = READY
            if place.ready_since is None:
                place.ready_since = now
                effects += self._became_ready(place)
        if before != place.state:
            effects.append(Announce())
        if role == ROUTER.name and place.info.get("workers") == self.workers and not self.stopping:
            effects += self._let_go(WORKER.name, now)
        return effects + self._look_for_ready_node()

    def exited(self, role: str, index: int, how: str, now: float) -> list[Effect]:
        """Note that the process of a place ended; `how` says in words with which status or signal."""
        place = self.places[role, index]
        self._forgive(place, now)
        hung = place.state == HUNG
        if place.state == STARTING and place.progress:
            how = f"{how}, said last: {place.progress}"
        place.pid = 0
        place.killed = False
        place.ready_since = None
        place.info = {}
        if self.stopping:
            place.state = STOPPED
            return [Announce(), *self._go_on_stopping(now)]
        if place.leaving:
            del self.places[role, index]
            return [*self._fill(role, now), Announce()]
        place.deaths += 1
        wait_s = min(BACK_OFF_FIRST_S * 2 ** min(place.deaths - 1, _DOUBLINGS_MAX), BACK_OFF_MAX_S)
        place.state = RESTARTING
        place.due = now + wait_s
        what = f"{'was hung and ' if hung else ''}ended ({how}), starts again in {wait_s:g} s"
        effects: list[Effect] = [_tell(place, "error", "SYSTEM_PROCESS_DOWN", what)]
        if place.deaths >= (FIRST_START_DEATHS_MAX if self._starts_only_with(role) else DEATHS_MAX):
            effects = self._give_up(place, how, now)
        return [*effects, Announce()]

    def spawn_failed(self, role: str, index: int, why: str, now: float) -> list[Effect]:
        """Note that the process could not even be started; it counts as a death."""
        return self.exited(role, index, why, now)

    @property
    def phase(self) -> str:
        """Give what the node is about: `starting` until it was ready once, `running`, `stopping`."""
        if self.stopping or self._stop_due is not None:
            return "stopping"
        return "running" if self.was_ready else "starting"

    def withdraw(self, now: float, wait_s: float) -> list[Effect]:
        """Say that the node stops, and stop it after a wait in which all goes on; at once if it is asked again."""
        if wait_s == 0 or self._stop_due is not None:
            return self.stop(now)
        self._stop_due = now + wait_s
        return [Announce()]

    def stop(self, now: float) -> list[Effect]:
        """Stop everything, one role after the other."""
        if self.stopping:
            return []
        self.stopping = True
        for place in self.places.values():
            if place.pid == 0:
                place.state = STOPPED
        return [Announce(), *self._go_on_stopping(now)]

    def tick(self, now: float) -> list[Effect]:
        """Look at the clock; call at least every TICK_MAX_S."""
        self._give_grace(now)
        effects: list[Effect] = []
        if self._stop_due is not None and self._stop_due <= now:
            effects += self.stop(now)
        for place in self.places.values():
            if place.pid != 0:
                effects += self._look_at(place, now)
            elif place.state == RESTARTING and place.due <= now and not self.stopping:
                place.restarts += 1
                effects += self._spawn(place)
        return effects

    def next_look_s(self, now: float) -> float:
        """Give how many seconds may pass until the next tick."""
        dues = [place.due - now for place in self.places.values() if place.state == RESTARTING]
        return max(0.0, min([TICK_MAX_S, *dues]))

    def table(self) -> list[TableRow]:
        """Give the rows that every process gets."""
        return [place.row() for place in self.places.values()]

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        for (role, index), place in self.places.items():
            assert (role, index) == (place.role, place.index), f"{place.name} stands at {role}.{index}"
            assert role in ROLES, f"{role} has no turn in the shut-down list"
            assert place.incarnation < self._next_incarnation, f"{place.name} is ahead of the counter"
            assert not self.stopping or place.state != RESTARTING, f"{place.name} restarts while all stop"
            place.validate()
        live = [place.incarnation for place in self.places.values() if place.pid]
        assert len(live) == len(set(live)), "two processes have one incarnation"
        assert not self._finished or not live, "finished with live processes"

    # -- starting --------------------------------------------------------------------------------------------

    def _spawn(self, place: Place) -> list[Effect]:
        place.incarnation = self._next_incarnation
        self._next_incarnation += 1
        # The shell answers `spawned` or `spawn_failed` before the next event, so the state is never seen
        # between.
        place.state = RESTARTING
        place.stop_asked = None
        return [Spawn(place.role, place.index, place.incarnation)]

    def _became_ready(self, place: Place) -> list[Effect]:
        effects: list[Effect] = []
        if place.role == ROUTER.name and not self.urls:
            self.urls = tuple(place.info.get("urls", ()))
            effects.append(Bound(self.urls))
        if self.was_ready:
            effects.append(_tell(place, "notice", "SYSTEM_PROCESS_UP", "is ready"))
        return effects

    def _look_for_ready_node(self) -> list[Effect]:
        """Tell once that all are ready (a router is not before it has its configuration and its workers)."""
        if self.was_ready or self.stopping:
            return []
        if any(place.state != READY for place in self.places.values() if ROLES[place.role].is_needed):
            return []
        self.was_ready = True
        return [NodeReady()]

    # -- watching --------------------------------------------------------------------------------------------

    def _give_grace(self, now: float) -> None:
        if self._ticked is not None and now - self._ticked > LATE_AFTER_S:
            gap = now - self._ticked
            for place in self.places.values():
                place.heard += gap
                if place.stop_asked is not None:
                    place.stop_asked += gap
        self._ticked = now

    def _look_at(self, place: Place, now: float) -> list[Effect]:
        if place.killed:
            return []
        if place.stop_asked is not None and now - place.stop_asked >= STOP_AFTER_S:
            return self._kill(place, f"did not stop within {STOP_AFTER_S:g} s and is killed")
        self._forgive(place, now)
        silent_s = now - place.heard
        if place.state == STARTING and silent_s >= START_SILENCE_MAX_S:
            last = place.progress or "nothing yet"
            what = f"reported no progress for {silent_s:.0f} s while starting (last: {last}) and is killed"
            return self._kill(place, what)
        if place.state == READY and silent_s >= HUNG_AFTER_S:
            place.state = HUNG
            what = f"gives no sign of life for {silent_s:.1f} s"
            hung = _tell(place, "error", "SYSTEM_PROCESS_HUNG", what)
            return [hung, Announce(), *self._kill(place, "is hung and is killed")]
        return []

    def _kill(self, place: Place, what: str) -> list[Effect]:
        place.killed = True
        return [
            _tell(place, "error", "SYSTEM_PROCESS_KILLED", what),
            Kill(place.role, place.index, place.pid),
        ]

    def _forgive(self, place: Place, now: float) -> None:
        """Take back one death for each FORGIVE_AFTER_S of health; `ready_since` moves on with it."""
        if place.ready_since is None or place.state == HUNG or place.deaths == 0:
            return
        periods = int((now - place.ready_since) / FORGIVE_AFTER_S)
        place.deaths = max(0, min(place.deaths, _DOUBLINGS_MAX) - periods) if periods else place.deaths
        place.ready_since += periods * FORGIVE_AFTER_S

    def _starts_only_with(self, role: str) -> bool:
        """Tell whether the start of the node fails if no process of this role comes up."""
        return ROLES[role].is_needed and not self.was_ready

    # -- stopping --------------------------------------------------------------------------------------------

    def _give_up(self, place: Place, how: str, now: float) -> list[Effect]:
        place.state = STOPPED
        what = f"ended {place.deaths} times in a row ({how}) and is not started again"
        effects: list[Effect] = [_tell(place, "critical", "SYSTEM_PROCESS_GIVEN_UP", what)]
        if ROLES[place.role].ends_node or self._starts_only_with(place.role):
            self._status = STATUS_FAILED
            effects += self.stop(now)
        return effects

    def _go_on_stopping(self, now: float) -> list[Effect]:
        """Ask the processes of the first role in the list that still has any; finish when there are none."""
        for role in STOP_ORDER:
            live = [place for place in self.places.values() if place.role == role and place.pid != 0]
            effects: list[Effect] = []
            for place in live:
                if place.stop_asked is None:
                    place.stop_asked = now
                    effects.append(Terminate(place.role, place.index, place.pid))
            if live:
                return effects
        if self._finished:
            return []
        self._finished = True
        return [Finish(self._status)]


def _tell(place: Place, severity: str, event: str, what: str) -> Tell:
    return Tell(severity, event, f"{place.name} {what}", place.role, place.index)
