"""One life of a host: it follows, and once nobody has the lease any more it is the primary and runs the node.

The keeper (`stores.keeper`) says which of both. The node is a process of its own, started with the same command: its
supervisor knows nothing of the pair, but that its processes obey a keeper. When another host may be the primary it is
killed, and the life is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from typing import TYPE_CHECKING, Final

from angarium_server.frames.shipping import BY_POLICY, Followed, Order
from angarium_server.process import KEEPER_WORD, utc_now
from cluster.admin.answers import HostStatus, StoreStatus
from cluster.data.node_file import NODE_FILE, process_start
from cluster.standby import files
from cluster.standby.pair.member import ActUntil, Begin, End, Release, Require, Role
from cluster.standby.promotion import (
    BEGUN_FILE,
    PROMOTED_FILE,
    Begun,
    Promotion,
    begun_of,
    forget_force,
    note_begun,
    note_promotion,
    noted_promotion,
    wanted_force,
    why_begun,
)
from cluster.standby.stores.disk import Probe, file_in
from cluster.standby.stores.manual import PROMOTION_EPOCHS

if TYPE_CHECKING:
    import ssl
    import subprocess
    from pathlib import Path

    from cluster.controller.health.server import HealthServer
    from cluster.standby.desk import Desk
    from cluster.standby.equipment import Equipment
    from cluster.standby.files_line import FilesLine
    from cluster.standby.followers import Followers
    from cluster.standby.pair.member import Member
    from cluster.standby.pair.outside import Standing
    from cluster.standby.stores.keeper import Keeper, Told

#: How often the host looks around; what is urgent gives it a turn at once. A turn takes half a millisecond.
TURN_S: Final = 0.05
STATUS_S: Final = 0.5
LOOK_S: Final = 0.5

_log = logging.getLogger("standby")


class Life:
    """From one candidacy to its end."""

    def __init__(self, equipment: Equipment, data: Path) -> None:
        self._equipment = equipment
        self._data = data
        self._member: Member | None = None
        self._keeper: Keeper | None = None
        self._followers: Followers | None = None
        self._probes: HealthServer | None = None
        self._desk: Desk | None = None
        self._line: FilesLine | None = None
        #: What a standby has to follow, looked at before each judgement: the number of workers is in the file before
        #: another one begins, and a standby that lacks what that one has is not to be taken for one with everything.
        self._stores = files.Stores(data)
        self._look_at = 0.0
        #: Since when the standby does not follow; 0: it does, or nobody knows.
        self._silent_at = 0.0
        #: It waits for the word until this host is the primary; and for which stores it has workers that wait.
        self._node: subprocess.Popen[bytes] | None = None
        #: How it ended, if somebody stopped it who wants the host to end with it; None: nobody did.
        self.node_status: int | None = None
        #: Readable when that one has ended.
        self._node_end = -1
        self._prepared_for: list[str] = []
        self._begun: Begin | None = None
        #: Which an operator wanted by force.
        self._promotion: Promotion | None = None
        self._acts_until = 0.0
        self._required_by: int | None = None
        #: The epoch of which the primary gave its lease back; 0: none.
        self._given_back = 0
        #: The next turn is due at once: a node ended, or the keeper said something.
        self._is_due = asyncio.Event()
        self._is_over = self._is_stopping = self._is_switching = self._has_stopped = False
        self._status_at = 0.0
        self._is_told_of_store = False
        #: What it says it is, and since when.
        self._role, self._since = "standby", utc_now()

    @property
    def has_switched(self) -> bool:
        """Tell whether the node stopped here to go on at the other host."""
        return self._is_switching and self._has_stopped

    @property
    def primary(self) -> str:
        """Give who was the primary when somebody looked last."""
        standing = self._member.seen.standing if self._member is not None else None
        return standing.primary if standing is not None else ""

    @property
    def epoch(self) -> int:
        """Give the epoch that was seen last."""
        standing = self._member.seen.standing if self._member is not None else None
        return standing.epoch if standing is not None else 0

    # -- told ------------------------------------------------------------------------------------------------

    def told(self, effect: Told) -> None:
        """Take what the keeper says."""
        match effect:
            case Begin(epoch, required_by):
                _log.warning("this host, %s, is the primary of epoch %d", self._equipment.name, epoch)
                self._begun, self._required_by = effect, required_by
            case ActUntil(until):
                self._acts_until = until
            case Require(order):
                self._required_by = order
                if order == BY_POLICY:
                    _log.warning("the standby lacks much, and gets it: nothing is acknowledged meanwhile")
            case Release():
                self._required_by = None
                _log.warning("the standby is not in the in-sync set: this host goes on without it")
            case End():
                _log.error("another host may be the primary: everything ends here")
                self._is_over, self._acts_until = True, 0.0
        self._order()
        self._is_due.set()

    def primary_has_left(self) -> None:
        """The primary has given its lease back."""
        self._given_back = self.epoch
        if self._keeper is not None:
            self._keeper.primary_has_left()

    def _lacks_store(self) -> bool:
        """Take nothing over from one that has everything before all was brought; false: it may be the primary."""
        assert self._member is not None
        if not self._member.lacks_store():
            return False
        self._equipment.noted.note_lacking()
        return True

    def stop(self) -> None:
        """Stop the node in order, and end."""
        self._is_stopping = True
        self.signal_node(signal.SIGTERM)

    def switch(self) -> None:
        """Stop the node in order, let the standby take over, and be its standby; a standby does nothing."""
        self._is_switching = self._desk is not None
        self.signal_node(signal.SIGTERM)

    def encrypt_with(self, context: ssl.SSLContext | None) -> None:
        """Have a primary that connects from now on see another certificate; a primary does nothing."""
        if self._followers is not None and context is not None:
            self._followers.encrypt_with(context)
            _log.info("the certificate of the standby was read again")

    def signal_node(self, number: int) -> None:
        """Tell the node something, if it runs here."""
        if self._desk is not None and self._node is not None and self._node.poll() is None:
            self._node.send_signal(number)

    # -- life ------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Follow, or be the primary, until that is over."""
        with Probe(file_in(self._data)) as probe:
            self._member, self._keeper, closing = self._equipment.keeper(probe, self.told)
            task = asyncio.get_running_loop().create_task(self._keeper.run())
            try:
                self._followers = self._equipment.followers(
                    lambda: self.epoch, self.primary_has_left, self._lacks_store
                )
                self._probes = self._equipment.probes(lambda: self.primary)
                await self._go_on(task)
            finally:
                task.cancel()
                await asyncio.wait([task])
                await self._end_node()
                if self._has_stopped and self._desk is not None and not self._desk.has_met:
                    await self._keeper.give_back()
                elif self._has_stopped:
                    await self._keeper.resign()
                await self._end()
                self._status_at = 0.0
                self._tell(time.monotonic())
                await closing
        if not task.cancelled() and (fault := task.exception()) is not None:
            raise fault

    async def _go_on(self, keeping: asyncio.Task[None]) -> None:
        while not (keeping.done() or self._is_over):
            now, wait_s = time.monotonic(), TURN_S
            self._is_due.clear()
            if self._begun is not None and self._desk is None:
                await self._become_primary()
            if self._followers is not None:
                if self._followers.tick(now):
                    wait_s = 0.0
                self._look_for_primary(self._followers, now)
                self._look_for_stores(self._followers)
                if self._probes is not None:
                    self._probes.tick(now)
                self._look_for_force()
                await self._prepare_node(now)
                if self._is_stopping:
                    return
            elif self._tend_node(now):
                return
            self._tell(now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._is_due.wait()

    def _look_for_primary(self, followers: Followers, now: float) -> None:
        assert self._keeper is not None
        if followers.hears(now):
            self._keeper.primary_speaks()
        else:
            self._keeper.primary_is_silent()

    def _look_for_stores(self, followers: Followers) -> None:
        """A disk that was empty has everything once each store was brought: what counts from then on waits for it."""
        assert self._member is not None
        stores = self._stores.names()
        if self._member.is_new and stores and followers.brought.issuperset(stores):
            self._member.is_new = False
            self._equipment.noted.note_whole()

    def _look_for_force(self) -> None:
        """Go ahead without all that was acknowledged, if the operator said so, until that makes no sense any more."""
        assert self._member is not None
        if self._promotion is None:
            self._promotion = wanted_force(self._data)
            if self._promotion is not None:
                self._member.is_forced = True
                who = self._promotion.who
                _log.error("%s has this host, %s, take over with what it has", who, self._equipment.name)
        elif not self._member.is_forced:
            self._promotion = None
            forget_force(self._data)
            _log.warning(
                "the primary is there again, or this host has everything: it takes nothing over by force"
            )

    async def _prepare_node(self, now: float) -> None:
        """Have a node that waits for the word, as soon as there is something to begin on, with as many workers."""
        if now < self._look_at:
            return
        self._look_at, stores = now + LOOK_S, self._stores.names()
        if self._node is not None and stores != self._prepared_for:
            await self._end_node()
        if self._node is None and stores:
            self._start_node()
            self._prepared_for = stores

    def _start_node(self) -> None:
        """Start it, and have a turn at once when it ends."""
        self._node = self._equipment.start_node()
        self._node_end = os.pidfd_open(self._node.pid)
        asyncio.get_running_loop().add_reader(self._node_end, self._node_ended)

    def _node_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._node_end)
        self._is_due.set()

    async def _become_primary(self) -> None:
        assert self._followers is not None
        assert self._member is not None
        why, promotion = self._why(self._followers), self._promotion
        await self._follow_no_more()
        if self._may_lack(self._member):
            self._equipment.noted.write(NODE_FILE, lambda: files.renew_node_id(self._data))
        self._desk = self._equipment.desk()
        if self._node is not None and self._node.poll() is not None:
            await self._end_node()
        if self._node is None:
            self._start_node()
        assert self._node is not None
        assert self._node.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._node.stdin as told:
            told.write(KEEPER_WORD)
        # The node begins meanwhile; nothing acts before the order.
        self._equipment.noted.note(Role.PRIMARY, self.epoch)
        self._member.is_new = False
        self._equipment.noted.note_whole()
        begun = Begun(epoch=self.epoch, at=utc_now(), why=why)
        self._equipment.noted.write(BEGUN_FILE, lambda: note_begun(self._data, begun))
        if promotion is not None:
            self._equipment.noted.write(PROMOTED_FILE, lambda: note_promotion(self._data, promotion))
        forget_force(self._data)
        self._order()

    def _may_lack(self, member: Member) -> bool:
        """Tell whether an operator promoted this host although it may lack what was acknowledged."""
        named = noted_promotion(self._data)
        is_forced = self._promotion is not None and member.restorable is None
        if named is None or member.before is None:
            return is_forced
        is_sure = self._equipment.learns_of_lack or self._is_given_back(member.before)
        return is_forced or bool(named.cost) or not is_sure

    def _is_given_back(self, before: Standing) -> bool:
        """Tell whether the primary before had stopped in order, with everything here; a name counts many epochs."""
        return self._given_back in (before.epoch, before.epoch - PROMOTION_EPOCHS)

    def _why(self, followers: Followers) -> str:
        """Say why this host is the primary, as a clause."""
        assert self._member is not None
        before = self._member.before
        if self._promotion is not None:
            return f"{self._promotion.who} promoted it by force"
        if self._equipment.store == "manual":
            return "it was named"
        return why_begun(
            self._equipment.name,
            before.primary if before is not None else "",
            is_given_back=before is not None and self._is_given_back(before),
            is_heard=followers.hears(time.monotonic()),
        )

    def _order(self) -> None:
        if self._desk is not None and self._begun is not None:
            self._desk.say(Order(self._begun.epoch, self._acts_until, self._required_by))

    def _tend_node(self, now: float) -> bool:
        """Look after the node of this primary and its standby; tell whether it is over."""
        assert self._node is not None
        assert self._desk is not None
        status = self._node.poll()
        if status is not None:
            self._has_stopped = True
            if not self._is_switching:
                self.node_status = status
            return True
        if self._acts_until and self._equipment.is_away(self._acts_until):
            _log.error(
                "the outside store does not answer this host, which ends, and follows whoever is the primary"
            )
            return True
        self._order()
        self._desk.tick(now)
        if self._line is None and now >= self._look_at:
            self._look_at = now + LOOK_S
            self._line = self._equipment.files_line() if self._stores.names() else None
        if self._line is not None:
            self._judge_standby(self._line, self._desk, now)
        return False

    def _judge_standby(self, line: FilesLine, desk: Desk, now: float) -> None:
        """Tell the keeper how far the standby is, which is as far as with the slowest store."""
        assert self._keeper is not None
        assert self._member is not None
        assert self._member.seen.standing is not None, "a primary has one"
        line.tick(now, self._member.seen.standing)
        stores = self._stores.names()
        if not line.follows(now) or desk.misses(stores, now):
            self._keeper.standby_is_silent(lacks_much=desk.lacks_much(stores, now))
            self._silent_at = self._silent_at or now
            return
        self._silent_at = 0.0
        if not stores or not desk.follows(stores, now):
            self._keeper.standby_is_not_asked()
            return
        self._keeper.standby_follows()
        caught_up = desk.caught_up(stores, now)
        if caught_up is not None:
            self._keeper.standby_has_all(*caught_up)

    async def _end_node(self) -> None:
        if self._node is not None:
            # Its processes die with it; no lease lets them act meanwhile.
            self._node.kill()
            assert self._node.stdin is not None
            self._node.stdin.close()
            await asyncio.get_running_loop().run_in_executor(None, self._node.wait)
            self._node = None
            asyncio.get_running_loop().remove_reader(self._node_end)
            os.close(self._node_end)

    async def _end(self) -> None:
        await self._end_node()
        if self._line is not None:
            self._line.close(has_given_lease=self._has_stopped)
        if self._desk is not None:
            self._equipment.end_desk(self._desk)
            self._desk = None
        await self._follow_no_more()

    async def _follow_no_more(self) -> None:
        """Let go of the stores and of the addresses."""
        if self._followers is not None:
            await self._followers.close()
        if self._probes is not None:
            self._probes.close()
        self._followers = self._probes = None

    # -- telling ---------------------------------------------------------------------------------------------

    def _tell(self, now: float) -> None:
        if now < self._status_at:
            return
        self._status_at = now + STATUS_S
        assert self._member is not None
        assert self._keeper is not None
        seen = self._member.seen
        standing = seen.standing
        self._note(standing)
        pid, begun = os.getpid(), begun_of(self._data, self.epoch)
        role = "standby" if self._desk is None else "primary"
        if role != self._role:
            self._role, self._since = role, utc_now()
        self._equipment.write_status(
            HostStatus(
                host=self._equipment.name,
                role=role,
                pid=pid,
                pid_start=process_start(pid) or 0,
                since=self._since,
                epoch=self.epoch,
                primary=standing.primary if standing is not None else "",
                begun=begun.at,
                why=begun.why,
                in_sync=sorted(standing.in_sync) if standing is not None else [],
                acts=self._keeper.may_act,
                forced=self._member.is_forced,
                required=self._required_by is not None,
                silent_s=round(now - self._silent_at, 1) if self._silent_at else 0.0,
                store=self._equipment.store,
                failure=self._keeper.failure,
                fault=self._fault_of(standing) if standing is not None and self._desk is None else "",
                refusal=self._followers.refusals.newest(now) if self._followers is not None else "",
                follows=self._followers.stores if self._followers is not None else [],
                stores=self._store_statuses(),
            )
        )

    def _note(self, standing: Standing | None) -> None:
        """Remember what is seen, and tell of an outside store that is wrong about this host."""
        assert self._member is not None
        follows = self._followers is not None and self._followers.stores
        if standing is not None and not self._is_told_of_store and (fault := self._fault_of(standing)):
            self._is_told_of_store = True
            _log.error(
                "%s This host takes over with 'angarium standby promote --force' only: say so where everything is",
                fault,
            )
        self._equipment.noted.note(Role.CANDIDATE if follows else None, self.epoch)

    def _fault_of(self, standing: Standing) -> str:
        """Say what keeps this host from taking over by a standing; empty: nothing."""
        assert self._member is not None
        if self._member.is_behind(standing):
            return (
                f"the outside store is in epoch {standing.epoch}, before what this host has seen:"
                " was it restored from a backup?"
            )
        if self._member.has_lost(standing):
            said = "the outside store says that this host has everything"
            return f"{said}, and its data directory was empty, or a store in it is damaged or missing."
        return ""

    def _store_statuses(self) -> list[StoreStatus]:
        if self._desk is None:
            return []
        stores = self._stores.names()
        said = {one.store: one for one in self._desk.said(stores, time.monotonic())}
        # Of a process that is away nobody knows how far the standby is.
        silence = {
            store: Followed(store, "", follows=False, caught_up=None, lag_groups=0, bringing=0)
            for store in stores
        }
        return [
            StoreStatus(
                store=one.store,
                follows=one.follows,
                caught_up=one.caught_up is not None,
                lag_groups=one.lag_groups,
                bringing_bytes=one.bringing,
                sent_bytes=one.sent,
            )
            for one in {**silence, **said}.values()
        ]
