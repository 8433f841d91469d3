"""The standby's end: it listens for the stores of the primary, and writes what they send.

Each store has a connection, and a thread that writes; what is to be written is decided by
`storage.shipping.receiving`. A spool or config store that is made anew lies beside the one that is there until it is
complete, so a host that stops in between has what it had.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from angarium import errors
from angarium_server.connections.door import Door, DoorLimits
from angarium_server.connections.framing import FramingLimits
from angarium_server.frames.frame import MalformedFrameError, decoder, read
from angarium_server.frames.shipping import (
    VERSION,
    AskSynced,
    LeaseGiven,
    Meet,
    NotFollowed,
    PastRow,
    ShipFiles,
    ToldSynced,
    Whereabouts,
)
from cluster.data.data_dir import CONFIG_FOLDER, SPOOL_FOLDER
from cluster.standby import files
from cluster.standby.places import ConfigPlace, SpoolPlace
from cluster.standby.stores.store import NoAnswerError
from storage.headroom import NO_ROOM, NoRoomError
from storage.shipping.encoding import frames_to_primary, from_primary
from storage.shipping.receiving import Finish, Fresh, Receiving
from storage.shipping.shipping import Here, Synced
from storage.spool import SpoolFullError, remove_spool

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from pathlib import Path

    from angarium_server.connections.connection import Connection
    from angarium_server.watch import Watch
    from storage.groups import GroupLog
    from storage.shipping.receiving import Job

#: A group holds what came during one write; far below what a worker keeps in memory.
MESSAGE_BYTES_MAX: Final = 1 << 30
#: Connections at once: a store each, and some that are about to go.
CONNECTIONS_MAX: Final = 200
LOGIN_S: Final = 5.0
#: Each store of the primary asks twice a second whether the standby is there.
SILENT_S: Final = 1.0
UNSENT_MAX: Final = 64 << 20
#: A primary that is refused tries again twice a second, for each store: each reason is logged so often, of so many that
#: are remembered; and it is what this host says of itself for a moment.
TOLD_AGAIN_S: Final = 60.0
REASONS_MAX: Final = 100
REFUSED_S: Final = 2.0
#: Jobs of a store that wait; nothing more is read before some are done.
JOBS_MAX: Final = 200

_log = logging.getLogger("standby")
_decode_meet = decoder(Meet)
_decode_files = decoder(ShipFiles)


class Terms(NamedTuple):
    """Whom this host follows."""

    node: str
    host: str
    secret: str
    data: Path
    map_bytes: int


class Follower:
    """One store of the primary, over one connection."""

    def __init__(
        self,
        name: str,
        place: SpoolPlace | ConfigPlace,
        host: str,
        say: Callable[[list[bytes]], None],
        failed: Callable[[errors.AngariumError], None],
        damaged: Callable[[str, errors.AngariumError], bool],
    ) -> None:
        """Open the store in a thread; what comes meanwhile waits."""
        self.name = name
        self._place = place
        self._host = host
        self._say = say
        self._failed = failed
        self._damaged = damaged
        self._pool = ThreadPoolExecutor(1, f"store-{name}")
        self._receiving: Receiving | None = None
        #: It was where a primary's is, at some time; one that was just made was not.
        self.was_brought = False
        self._is_over = False
        self._is_due = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_full(self) -> bool:
        """Tell whether nothing more is to be read for now."""
        return self._receiving is None or len(self._receiving.jobs) >= JOBS_MAX

    def take(self, frames: list[bytes]) -> None:
        """Take what the primary says.

        Raises:
            MalformedFrameError: nobody says so.
        """
        assert self._receiving is not None
        if frames[0] == AskSynced.operation:
            self._say(ToldSynced(0).frames())
            return
        message = from_primary(frames)
        if message is None:
            raise MalformedFrameError(f"operation {frames[0]!r}")
        self._receiving.take(message)
        self._answer(self._receiving)
        self._is_due.set()

    def _answer(self, receiving: Receiving) -> None:
        said, receiving.outbox[:] = list(receiving.outbox), []
        for message in said:
            is_brought = isinstance(message, Synced) or (
                isinstance(message, Here) and message.past.newest > 0
            )
            self.was_brought = self.was_brought or is_brought
            self._say(frames_to_primary(message, self._host))

    async def _run(self) -> None:
        try:
            self._receiving = Receiving(await self._open())
            _log.info("store %s of the primary is followed", self.name)
            self._answer(self._receiving)
            while not self._is_over:
                await self._is_due.wait()
                self._is_due.clear()
                while self._receiving.jobs and not self._is_over:
                    await self._do(self._receiving, self._receiving.next_job())
        except Exception as error:  # noqa: BLE001 - a primary that is not told waits for an answer that never comes
            self._failed(_reason(error))
        finally:
            try:
                await self._in_thread(self._place.close)
            finally:
                self._pool.shutdown(wait=False)

    async def _open(self) -> GroupLog:
        """Open the store; a damaged one is brought anew, unless this host may be the primary by now."""
        try:
            return cast("GroupLog", await self._in_thread(self._place.open))
        except errors.UnavailableError as error:
            if error.code != errors.SPOOL_DAMAGED or not self._damaged(self.name, error):
                raise
            return cast("GroupLog", await self._in_thread(self._place.open_empty))

    async def _do(self, receiving: Receiving, job: Job) -> None:
        if isinstance(job, Fresh):
            await self._in_thread(self._place.begin_anew)
        else:
            await self._in_thread(self._place.write, job.changes)
        if isinstance(job, Finish):
            receiving.log = await self._in_thread(self._place.finish)
        receiving.written(job)
        self._answer(receiving)

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)

    async def end(self) -> None:
        """Write no more than what is being written, and close the store."""
        self._is_over = True
        self._is_due.set()
        await asyncio.wait([self._task])


def _reason(error: Exception) -> errors.AngariumError:
    """Give what the primary is told of what keeps a store from being written."""
    if isinstance(error, errors.AngariumError):
        return error
    is_full = isinstance(error, SpoolFullError | NoRoomError) or getattr(error, "errno", None) in NO_ROOM
    code = errors.DISK_FULL if is_full else errors.HOME_NOT_READY
    return errors.error_for(code, str(error) or type(error).__name__)


class Refusals:
    """Why primaries were not followed."""

    def __init__(self) -> None:
        #: When each reason was logged last.
        self._told: dict[str, float] = {}
        self._newest, self._newest_at = "", float("-inf")

    def add(self, reason: str, now: float) -> None:
        """Take note, and log what was not logged just before."""
        self._newest, self._newest_at = reason, now
        if now - self._told.get(reason, float("-inf")) < TOLD_AGAIN_S:
            return
        if len(self._told) >= REASONS_MAX:
            self._told.clear()
        self._told[reason] = now
        _log.warning("a store of the primary is not followed: %s", reason)

    def newest(self, now: float) -> str:
        """Give why one was not followed just now; empty: none was refused."""
        return self._newest if now - self._newest_at < REFUSED_S else ""


class Followers:
    """All stores of the primary."""

    def __init__(
        self,
        watch: Watch,
        terms: Terms,
        promised: Callable[[], int],
        left: Callable[[], None],
        lacks: Callable[[], bool],
    ) -> None:
        """Listen nowhere yet.

        Args:
            watch: the loop.
            terms: whom this host follows.
            promised: gives the epoch before which no primary is followed.
            left: called when a primary says that it has given its lease back.
            lacks: called when a store is damaged or missing; false: this host may be the primary, and it is to stay as
                it is.
        """
        self._lacks = lacks
        self._terms = terms
        self._promised = promised
        self._has_left = left
        framing = FramingLimits(MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX)
        limits = DoorLimits(framing, UNSENT_MAX, LOGIN_S, CONNECTIONS_MAX, CONNECTIONS_MAX)
        self._door = Door(
            watch, limits, self._message, self._lost, self._fault, self._refused, lambda _network, _now: True
        )
        #: By connection; and those that close their store.
        self._followers: dict[bytes, Follower] = {}
        self._ending: set[asyncio.Task[None]] = set()
        #: Connections that ship files.
        self._filing: set[bytes] = set()
        #: Stores that the primary has no more, which go when nothing is written to them.
        self._left: set[str] = set()
        #: Nobody is followed any more: what is still shipped is passed over.
        self._is_closing = False
        self._heard_at = 0.0
        self.refusals = Refusals()
        #: Stores that were brought to where the primary's were, at some time.
        self.brought: set[str] = set()

    def listen(self, url: str, context: ssl.SSLContext | None) -> str:
        """Listen at an address; gives it with the port it got.

        Raises:
            AngariumError: somebody else listens there, or this host has no such address (40902, 40017).
        """
        try:
            return self._door.listen(url, context)
        except OSError as error:
            code = errors.OBJECT_IN_USE if error.errno == errno.EADDRINUSE else errors.INVALID_CONFIGURATION
            advice = "standby.listen is where this host listens for the other one, at an address of its own"
            raise errors.error_for(code, f"standby.listen {url}: {error.strerror}", advice) from None

    def encrypt_with(self, context: ssl.SSLContext) -> None:
        """Encrypt connections that come from now on with this."""
        self._door.encrypt_with(context)

    @property
    def stores(self) -> list[str]:
        """Give which stores are followed."""
        return sorted(follower.name for follower in self._followers.values())

    def hears(self, now: float) -> bool:
        """Tell whether a primary that is followed has said something just now; it asks for an answer all the time."""
        return bool(self._followers) and now - self._heard_at < SILENT_S

    def tick(self, now: float) -> bool:
        """Do what is due; tell whether more is here already."""
        self._door.tick(now)
        is_more = self._door.read_rest()
        self._door.flush()
        self.brought.update(one.name for one in self._followers.values() if one.was_brought)
        if self._left and not self._ending:
            for store in self._left.difference(self.stores):
                _log.info("store %s is dropped: the primary has it no more", store)
                remove_spool(self._terms.data / SPOOL_FOLDER / store)
                self._left.discard(store)
                self.brought.discard(store)
        return is_more

    async def close(self) -> None:
        """Follow nobody any more; returns when no store is open."""
        self._is_closing = True
        for connection_id in list(self._followers):
            self._end(connection_id)
        while self._ending:
            await asyncio.wait(self._ending)
        self._door.close(0.0)

    # -- the door --------------------------------------------------------------------------------------------

    def _message(self, connection: Connection, frames: list[bytes], now: float) -> bool:
        follower = self._followers.get(connection.id)
        self._heard_at = now
        try:
            if follower is not None:
                if follower.is_full:
                    return False
                follower.take(frames)
            elif connection.id in self._filing:
                self._file(connection.id, frames)
            elif self._is_closing:
                return True
            else:
                self._meet(connection, read(_decode_meet, frames))
        except MalformedFrameError as error:
            self._refuse(connection.id, errors.error_for(errors.MALFORMED_FRAME, str(error)), now)
        except errors.AngariumError as error:
            self._refuse(connection.id, error, now)
        return True

    def _meet(self, connection: Connection, meet: Meet) -> None:
        fault = self._fault_of(meet)
        if fault is not None:
            raise fault
        self._door.admit(connection.id)
        if meet.store == files.STORE:
            self._filing.add(connection.id)
            self._say(connection.id, Whereabouts(PastRow([], 0, 0), self._terms.host).frames())
            return
        if meet.store in self.stores or self._ending:
            raise errors.error_for(errors.HOME_NOT_READY, f"store {meet.store} is still open for another one")
        place = self._place_of(meet.store)
        if meet.store in self.brought and not place.is_there:
            self._missing(meet.store)
        self._left.discard(meet.store)
        self._followers[connection.id] = Follower(
            meet.store,
            place,
            self._terms.host,
            lambda said: self._say(connection.id, said),
            lambda error: self._refuse(connection.id, error, time.monotonic()),
            self._damaged,
        )

    def _missing(self, store: str) -> None:
        """Have a store that was here brought anew: this host has not everything until that is done.

        Raises:
            UnavailableError: it may be the primary by now (50320).
        """
        if not self._lacks():
            raise errors.error_for(errors.HOME_NOT_READY, f"store {store} is missing")
        self.brought.discard(store)
        _log.error("store %s is missing. The primary brings it anew", store)

    def _damaged(self, store: str, error: errors.AngariumError) -> bool:
        """Tell whether a damaged store is to be brought anew: then this host has not everything until that is done."""
        if not self._lacks():
            return False
        self.brought.discard(store)
        # What is to be done about a node that is alone would be wrong here.
        what = error.detail.partition("; ")[0]
        text = "%s. The primary brings store %s anew, and damaged-%s keeps what was here"
        _log.error(text, what, store, store)
        return True

    def _place_of(self, store: str) -> SpoolPlace | ConfigPlace:
        terms = self._terms
        if store == CONFIG_FOLDER:
            return ConfigPlace(terms.data)
        return SpoolPlace(terms.data, store, terms.map_bytes)

    def _fault_of(self, meet: Meet) -> errors.AngariumError | None:
        terms = self._terms
        if not hmac.compare_digest(meet.secret.encode(), terms.secret.encode()):
            return errors.error_for(errors.STANDBY_UNAUTHORIZED, "the primary has another secret")
        if meet.version != VERSION:
            return errors.error_for(
                errors.STANDBY_REFUSED, f"version {meet.version} of the primary is not known here"
            )
        if meet.node != terms.node:
            return errors.error_for(errors.STANDBY_REFUSED, f"this is a host of node {terms.node!r}")
        if meet.epoch < self._promised():
            return errors.error_for(errors.STANDBY_REFUSED, f"epoch {meet.epoch} is over")
        own = files.data_id_of(terms.data)
        if own not in ("", meet.data):
            detail = f"the data directory here is of another node ({own}), and is not overwritten"
            return errors.error_for(errors.STANDBY_REFUSED, detail, "move it away")
        if meet.store not in (CONFIG_FOLDER, files.STORE) and not meet.store.isdecimal():
            return errors.error_for(errors.INVALID_ARGUMENT, f"there is no store {meet.store!r}")
        return None

    def _file(self, connection_id: bytes, frames: list[bytes]) -> None:
        if frames[0] == LeaseGiven.operation:
            self._has_left()
            return
        if frames[0] == AskSynced.operation:
            self._say(connection_id, ToldSynced(0).frames())
            return
        shipped = read(_decode_files, frames)
        try:
            self._left.update(files.write(self._terms.data, shipped))
        except OSError as error:
            raise errors.error_for(errors.DISK_FULL, str(error)) from None
        except NoAnswerError as error:
            raise errors.error_for(errors.HOME_NOT_READY, error.reason) from None
        self._say(connection_id, ToldSynced(shipped.number).frames())

    def _say(self, connection_id: bytes, frames: list[bytes]) -> None:
        self._door.send(connection_id, frames)
        self._door.flush()

    def _refuse(self, connection_id: bytes, error: errors.AngariumError, now: float) -> None:
        self.refusals.add(str(error), now)
        self._door.send(connection_id, NotFollowed(error.code, error.detail).frames())
        self._door.finish(connection_id, now)
        self._door.flush()
        self._end(connection_id)

    def _lost(self, connection_id: bytes, _reason: str, _now: float) -> None:
        self._end(connection_id)

    def _fault(self, connection_id: bytes, reason: str, now: float) -> None:
        self._refuse(connection_id, errors.error_for(errors.MALFORMED_FRAME, reason), now)

    def _refused(self, reason: str, _now: float) -> None:
        _log.warning("somebody was not let in: %s", reason)

    def _end(self, connection_id: bytes) -> None:
        self._filing.discard(connection_id)
        follower = self._followers.pop(connection_id, None)
        if follower is not None:
            if follower.was_brought:
                self.brought.add(follower.name)
            task = asyncio.get_running_loop().create_task(follower.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
