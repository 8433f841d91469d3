"""The registry of stages and sinks: which rows that wait at the homes are to be published, and which batches were.

A stage is known by a text that nobody guesses, one of its (Message VPN, username), and by a number, which is that of
its producer and never given again. What becomes of it is decided here, durably, before anybody acts on it:

    open ──commit──► releasing ──settled──► (released) ──► forgotten
      └────abort, age──► dropping ──settled──► forgotten

The router carries a decision to all homes and says `settled`; until then it is told again by whatever controller there
is. A commit that names a sink and a batch notes the batch in the same transaction, so of all commits of one batch one
publishes its stages, and the others drop theirs. A commit without a sink has nothing to be recognised by but its
stages, so these are remembered for a while.

The three tables (open stages, sinks, stages that are remembered) are shared by all: beyond its share a Message VPN or a
username opens no further stage and makes no further sink, and what is remembered of its commits displaces only what is
remembered of its own. A sink is never forgotten to make room, since its batches would be published again.

Pure: methods give the entries to make durable, `take` takes them over. Times are seconds since 1970.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from cluster.catalog.producers import COUNTER
from cluster.catalog.shares import WHOLE, Owner, Percents, Shares
from cluster.objects import is_like
from storage.config_store import Counter, Entry, Sink, Stage

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from cluster.catalog.producers import Producers

OPEN: Final = 0
RELEASING: Final = 1
DROPPING: Final = 2
RELEASED: Final = 3
#: How operators see them.
STATES: Final = ("open", "committed", "aborted", "released")
#: Stages that are open; a driver that leaves its stages behind fills this, and ageing empties it.
OPEN_MAX: Final = 100_000
#: Sinks of the node.
SINKS_MAX: Final = 10_000
#: Released stages of commits without a sink that are remembered; the oldest are forgotten.
RELEASED_MAX: Final = 100_000
#: Of the name of a sink, as of a producer.
SINK_BYTES_MAX: Final = 160
#: Highest number of a batch.
BATCH_MAX: Final = (1 << 62) - 1


class Decision(NamedTuple):
    """What a commit or an abort comes to."""

    entries: list[Entry]
    #: Whether it publishes something that was not published before, or notes a new batch.
    is_new: bool = False
    #: Stages that are on their way to their lanes, in the order in which they were named.
    release: Sequence[int] = ()
    #: Stages that go.
    drop: Sequence[int] = ()


class Stages:
    """All stages and sinks of the node."""

    def __init__(
        self,
        stages: Sequence[Stage],
        sinks: Sequence[Sink],
        producers: Producers,
        idle_s: int,
        percents: Percents = WHOLE,
    ) -> None:
        """Begin with what the store holds; `producers` gives the numbers."""
        self._producers = producers
        self._idle_s = idle_s
        #: Exactly the stored stages, by number and by (Message VPN, username, name).
        self._stages: dict[int, Stage] = {}
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._sinks: dict[tuple[str, str, str], Sink] = {}
        #: Owner -> released stages of its that are remembered, the oldest first; none is empty.
        self._released: dict[Owner, dict[int, None]] = {}
        #: In step with the open stages, the released ones and the sinks.
        self._open = Shares("open stages", OPEN_MAX, percents, "commit or abort some, or wait until they age")
        self._remembered = Shares("released stages", RELEASED_MAX, percents)
        hint = "'angarium sink forget' removes those that nobody needs"
        self._sink_shares = Shares("sinks", SINKS_MAX, percents, hint)
        self.take(stages)
        self.take(sinks)

    def __len__(self) -> int:
        return len(self._stages)

    @property
    def sinks(self) -> int:
        """Give the number of sinks."""
        return len(self._sinks)

    # -- what clients do -------------------------------------------------------------------------------------

    def open(self, owner: Owner, name: str, *, resume: bool, now_s: int) -> tuple[int, list[Entry]]:
        """Give the number of a stage, and what has to be durable first.

        Raises:
            NotFoundError: it is to be resumed, and is not open (40403).
            UnavailableError: there are too many, of this owner (50324) or of the node (50319).
        """
        if resume:
            stage = self._find(owner, name)
            if stage.state != OPEN:
                raise _unknown(name)
            return self._number(stage), []
        full = self._open.refusal(owner)
        if full is not None:
            raise full
        number = self._producers.newest + 1
        return number, [Counter(COUNTER, number + 1), Stage(*owner, name, number, OPEN, now_s, "")]

    def commit(
        self, owner: Owner, sink: str | None, batch: int | None, names: Sequence[str], now_s: int
    ) -> Decision:
        """Decide what becomes of stages; with a sink only the first commit of a batch publishes.

        Raises:
            NotFoundError: one is not there, or was aborted (40403).
            InvalidRequestError: sink or batch do not fit (40018).
            UnavailableError: there are too many sinks, of this owner (50324) or of the node (50319).
        """
        distinct = list(dict.fromkeys(names))
        if sink is None or batch is None:
            _check_none(sink, batch)
            return self._commit(owner, "", distinct, now_s)
        _check_sink(sink, batch)
        key = (*owner, sink)
        known = self._sinks.get(key)
        if known is not None and known.batch is not None and batch <= known.batch:
            drop = [stage for stage in self._known(owner, distinct) if stage.state == OPEN]
            release = [
                number
                for number, stage in self._stages.items()
                if stage.state == RELEASING and stage[:2] == owner and stage.sink == sink
            ]
            entries = [stage._replace(state=DROPPING, used_s=now_s) for stage in drop]
            dropped = [self._number(one) for one in drop]
            return Decision([*entries], is_new=False, release=sorted(release), drop=dropped)
        full = self._sink_shares.refusal(owner) if known is None else None
        if full is not None:
            raise full
        decided = self._commit(owner, sink, distinct, now_s)
        return decided._replace(entries=[Sink(*key, batch, now_s), *decided.entries], is_new=True)

    def _commit(self, owner: Owner, sink: str, names: list[str], now_s: int) -> Decision:
        entries: list[Entry] = []
        release = []
        for name in names:
            stage = self._find(owner, name)
            if stage.state == DROPPING or (stage.state != OPEN and (sink or stage.sink)):
                raise _unknown(name)
            if stage.state != RELEASED:
                release.append(self._number(stage))
            if stage.state == OPEN:
                entries.append(stage._replace(state=RELEASING, used_s=now_s, sink=sink))
        return Decision(entries, bool(entries), release)

    def abort(self, owner: Owner, names: Sequence[str], now_s: int) -> Decision:
        """Drop stages; those that are not there, or committed, stay as they are."""
        chosen = [one for one in self._known(owner, dict.fromkeys(names)) if one.state == OPEN]
        return self._dropping(chosen, now_s)

    def _dropping(self, stages: Iterable[Stage], now_s: int) -> Decision:
        chosen = list(stages)
        entries: list[Entry] = [stage._replace(state=DROPPING, used_s=now_s) for stage in chosen]
        return Decision(entries, bool(entries), (), [self._number(stage) for stage in chosen])

    # -- what the router and time do -------------------------------------------------------------------------

    def settled(self, release: Sequence[int], drop: Sequence[int], now_s: int) -> list[Entry]:
        """All homes have done what was decided: give what forgets these stages, or remembers that they were."""
        entries: list[Entry] = []
        remembered: dict[Owner, list[int]] = {}
        for number in release:
            stage = self._stages.get(number)
            if stage is not None and stage.state == RELEASING and stage.sink:
                entries.append(stage._replace(number=None))
            elif stage is not None and stage.state == RELEASING:
                entries.append(stage._replace(state=RELEASED, used_s=now_s))
                remembered.setdefault(stage[:2], []).append(number)
        for number in drop:
            stage = self._stages.get(number)
            if stage is not None and stage.state == DROPPING:
                entries.append(stage._replace(number=None))
        for owner, numbers in remembered.items():
            entries += self._forget_oldest(owner, numbers)
        return entries

    def _forget_oldest(self, owner: Owner, new: Sequence[int]) -> list[Entry]:
        """Give what forgets as many released stages of an owner as do not fit, the oldest first."""
        own = self._released.get(owner, {})
        beyond_own = len(own) + len(new) - self._remembered.per_username
        beyond_all = len(self._remembered) + len(new) - RELEASED_MAX
        surplus = max(beyond_own, beyond_all, 0)
        return [self._stages[number]._replace(number=None) for number in islice(chain(own, new), surplus)]

    def held(self, numbers: Sequence[int]) -> Decision:
        """Say what is to become of stages that a home has: those that were committed go on, and unknown ones go."""
        states = {number: self._stages.get(number) for number in numbers}
        return Decision(
            [],
            release=[
                n for n, stage in states.items() if stage is not None and stage.state in (RELEASING, RELEASED)
            ],
            drop=[n for n, stage in states.items() if stage is None or stage.state == DROPPING],
        )

    @property
    def decided(self) -> dict[str, Any]:
        """Give what the router is told: the open stages, and the decisions that are not settled."""
        of_state: dict[int, list[int]] = {OPEN: [], RELEASING: [], DROPPING: [], RELEASED: []}
        for number, stage in sorted(self._stages.items()):
            of_state[stage.state].append(number)
        return {
            "open": of_state[OPEN],
            "release": of_state[RELEASING],
            "drop": of_state[DROPPING],
            "newest": self._producers.newest,
        }

    def age(self, now_s: int, in_use: Container[int]) -> list[Entry]:
        """Give what drops stages that nobody committed for long, and forgets what is remembered."""
        entries: list[Entry] = []
        for number, stage in self._stages.items():
            if number in in_use and stage.state == OPEN:
                entries.append(stage._replace(used_s=now_s))
            elif now_s - stage.used_s > self._idle_s:
                if stage.state == OPEN:
                    entries.append(stage._replace(state=DROPPING, used_s=now_s))
                elif stage.state == RELEASED:
                    entries.append(stage._replace(number=None))
        return entries

    def dropped_by(self, entries: Sequence[Entry]) -> list[str]:
        """Give the ids of the stages that some entries, not taken over yet, drop."""
        return [
            entry.name
            for entry in entries
            if isinstance(entry, Stage) and entry.number is not None and entry.state == DROPPING
        ]

    def forget_all(self, owner: tuple[str, str | None], now_s: int) -> list[Entry]:
        """Give what drops the stages of a Message VPN, or of one of its usernames, and forgets its sinks."""
        vpn, username = owner
        stages = [
            stage
            for stage in self._stages.values()
            if stage.vpn == vpn and username in (None, stage.username) and stage.state == OPEN
        ]
        sinks = [sink for key, sink in self._sinks.items() if key[0] == vpn and username in (None, key[1])]
        return [*self._dropping(stages, now_s).entries, *(sink._replace(batch=None) for sink in sinks)]

    # -- what operators see and do ---------------------------------------------------------------------------

    def find(self, vpn: str | None) -> list[dict[str, Any]]:
        """Give a row for each stage that is not over, ordered; vpn None means all Message VPNs."""
        return [
            {
                "vpn": stage.vpn,
                "username": stage.username,
                "id": stage.name,
                "number": number,
                "state": STATES[stage.state],
                "sink": stage.sink,
                "used_s": stage.used_s,
            }
            for number, stage in sorted(self._stages.items())
            if vpn in (None, stage.vpn) and stage.state != RELEASED
        ]

    def abort_any(self, vpn: str, names: Sequence[str], now_s: int) -> Decision:
        """Drop stages of a Message VPN, whoever staged them.

        Raises:
            NotFoundError: one is not there, or not open (40403).
        """
        found = {stage.name: stage for stage in self._stages.values() if stage.vpn == vpn}
        for name in names:
            if name not in found or found[name].state != OPEN:
                raise _unknown(name)
        return self._dropping([found[name] for name in dict.fromkeys(names)], now_s)

    def find_sinks(self, vpn: str | None, pattern: str) -> list[dict[str, Any]]:
        """Give a row for each sink whose name matches, with * and ? alone, ordered."""
        return [
            {"vpn": key[0], "username": key[1], "name": key[2], "batch": sink.batch, "used_s": sink.used_s}
            for key, sink in sorted(self._sinks.items())
            if vpn in (None, key[0]) and is_like(key[2], pattern)
        ]

    def forget_sink(self, vpn: str, username: str, name: str) -> list[Entry]:
        """Give what forgets a sink and its batches.

        Raises:
            NotFoundError: there is none (40401).
        """
        sink = self._sinks.get((vpn, username, name))
        if sink is None:
            raise errors.error_for(
                errors.OBJECT_NOT_FOUND, f"sink {name!r} of username {username!r} in Message VPN {vpn!r}"
            )
        return [sink._replace(batch=None)]

    # -- the store -------------------------------------------------------------------------------------------

    def take(self, entries: Sequence[Entry]) -> None:
        """Take over entries; those of others are passed over."""
        for entry in entries:
            if isinstance(entry, Stage):
                self._put(entry)
            elif isinstance(entry, Sink) and entry.batch is None:
                if self._sinks.pop(entry[:3], None) is not None:
                    self._sink_shares.count(entry[:2], -1)
            elif isinstance(entry, Sink):
                if entry[:3] not in self._sinks:
                    self._sink_shares.count(entry[:2], 1)
                self._sinks[entry[:3]] = entry

    def undoing(self, entries: Iterable[Entry]) -> list[Entry]:
        """Give the entries that bring back what there is now, once these are taken over."""
        undoing: list[Entry] = []
        for entry in entries:
            if isinstance(entry, Stage):
                number = self._numbers.get(entry[:3])
                undoing.append(entry._replace(number=None) if number is None else self._stages[number])
            elif isinstance(entry, Sink):
                undoing.append(self._sinks.get(entry[:3], entry._replace(batch=None)))
        return undoing

    def _put(self, entry: Stage) -> None:
        number = self._numbers.get(entry[:3])
        before = None if number is None else self._stages[number]
        if number is not None and before is not None:
            del self._stages[number], self._numbers[entry[:3]]
            self._uncount(before, number)
        if entry.number is None:
            return
        self._stages[entry.number] = entry
        self._numbers[entry[:3]] = entry.number
        if entry.state == OPEN:
            self._open.count(entry[:2], 1)
        elif entry.state == RELEASED:
            self._remembered.count(entry[:2], 1)
            self._released.setdefault(entry[:2], {})[entry.number] = None

    def _uncount(self, stage: Stage, number: int) -> None:
        owner = stage[:2]
        if stage.state == OPEN:
            self._open.count(owner, -1)
        elif stage.state == RELEASED:
            self._remembered.count(owner, -1)
            del self._released[owner][number]
            if not self._released[owner]:
                del self._released[owner]

    def _known(self, owner: Owner, names: Iterable[str]) -> list[Stage]:
        numbers = [self._numbers.get((*owner, name)) for name in names]
        return [self._stages[number] for number in numbers if number is not None]

    def _find(self, owner: Owner, name: str) -> Stage:
        number = self._numbers.get((*owner, name))
        if number is None:
            raise _unknown(name)
        return self._stages[number]

    def _number(self, stage: Stage) -> int:
        assert stage.number is not None, "it is stored"
        return stage.number

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        assert {stage[:3]: number for number, stage in self._stages.items()} == self._numbers
        assert all(stage.number == number for number, stage in self._stages.items())
        assert all(number <= self._producers.newest for number in self._stages)
        assert len(self._open) == sum(stage.state == OPEN for stage in self._stages.values())
        released = {n: stage[:2] for n, stage in self._stages.items() if stage.state == RELEASED}
        assert released == {n: owner for owner, numbers in self._released.items() for n in numbers}
        assert (len(self._remembered), len(self._sink_shares)) == (len(released), len(self._sinks))
        for shares in (self._open, self._remembered, self._sink_shares):
            shares.validate()
        assert all(sink.batch is not None for sink in self._sinks.values())


def _unknown(name: str) -> errors.AngariumError:
    return errors.error_for(errors.UNKNOWN_STAGE, repr(name[:SINK_BYTES_MAX]))


def _check_none(sink: str | None, batch: int | None) -> None:
    if sink is not None or batch is not None:
        raise errors.invalid(f"sink {sink!r} and batch {batch!r}: a commit has both, or neither")


def _check_sink(sink: str, batch: int) -> None:
    if not 1 <= len(sink.encode(errors="replace")) <= SINK_BYTES_MAX or not sink.isprintable():
        detail = f"sink {sink[:SINK_BYTES_MAX]!r}: a name has 1 to {SINK_BYTES_MAX} bytes that can be printed"
        raise errors.invalid(detail)
    if not 0 <= batch <= BATCH_MAX:
        raise errors.invalid(f"batch {batch}: from 0 to {BATCH_MAX}")
