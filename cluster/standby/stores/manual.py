"""The operator as the outside store: a file on each host says who is the primary, and only a person changes that.

The host that is named takes over at its next start or as it is named, and keeps the lease until another one is named
in *its* file: it never ends by itself. Nobody is named at first.

**What this cannot do.** It does not notice that a host is dead, and never fails over by itself. It keeps no second
primary away: each host has a file of its own, so whoever names the other host must name it on both, or have the old
primary switched off. And a standby does not learn that it was let go: its file says what the primary told it last, so
after a promotion messages may be missing, unless the primary has to wait for its standby (`required`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from cluster.data.data_dir import write_in_turns
from cluster.standby.pair.outside import Answer, Holder, Read, Renew, Seen, Standing, Swap, Take
from cluster.standby.stores.store import NoAnswerError
from cluster.standby.stores.written import WrittenStanding, check_holder, line_of, read_holder, written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cluster.standby.pair.outside import Request

T = TypeVar("T")

#: A promotion is as many epochs as that. A primary that is started again counts one, so the epoch of a host that was
#: named is above all that the old one reached meanwhile, of which its file knows nothing.
PROMOTION_EPOCHS: Final = 1_000


class PromotionError(Exception):
    """A host is not promoted, because messages may be missing there; the text says which host has them."""


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the file."""

    #: The host whose file it is; empty: it has not asked yet.
    host: str = ""
    #: The host that the operator named; empty: none yet.
    primary: str = ""
    #: Who has taken the lease, as a line; empty: nobody.
    holder: str = ""
    revision: int = 0
    standing: WrittenStanding | None = None

    def seen_by(self, host: str) -> Seen:
        """Give what a host sees: who was named has the lease, for all others also before it took it."""
        standing = None if self.standing is None else self.standing.standing
        holder = read_holder(self.holder) if self.holder else None
        if holder is None or holder.host != self.primary:
            holder = None if self.primary == host else Holder(self.primary, "")
        return Seen(self.revision, standing, holder)

    def with_standing(self, standing: Standing) -> _State:
        """Give it with another standing."""
        return msgspec.structs.replace(self, revision=self.revision + 1, standing=written(standing, ""))


class ManualStore:
    """The outside store of one holder in a file of its host."""

    def __init__(self, me: Holder, path: Path) -> None:
        """Ask nothing yet; the file need not exist."""
        check_holder(me)
        self._me = me
        self._path = path
        #: A disk that hangs holds one thread, not one for each request.
        self._is_busy = False

    async def ask(self, number: int, request: Request, timeout_s: float) -> Answer:
        """Have a request carried out; see `Store`."""
        if self._is_busy:
            raise NoAnswerError(f"{self._path}: the last request is still under way")
        try:
            async with asyncio.timeout(timeout_s):
                is_done, seen = await self._in_thread(lambda: self._do(request))
        except TimeoutError:
            raise NoAnswerError(f"{self._path}: no answer in time") from None
        except OSError as error:
            raise NoAnswerError(f"{self._path}: {error.strerror}") from None
        return Answer(number, is_done, seen)

    async def close(self) -> None:
        """There is nothing to end."""

    def _do(self, request: Request) -> tuple[bool, Seen]:
        with _locked(self._path):
            state = _read(self._path)
            changed = self._changed(state, request)
            kept = changed or state
            if not kept.host:
                kept = msgspec.structs.replace(kept, host=self._me.host)
            if kept != state:
                _write(self._path, kept)
            return changed is not None, kept.seen_by(self._me.host)

    def _changed(self, state: _State, request: Request) -> _State | None:
        """Give what a request makes of the file; None: it is not carried out."""
        seen = state.seen_by(self._me.host)
        match request:
            case Read():
                return state
            case Renew() if seen.holder == self._me:
                return state
            case Swap(revision, standing) if seen.holder == self._me and revision == state.revision:
                return state.with_standing(standing)
            case Take(as_seen, standing) if state.primary == self._me.host:
                if as_seen.revision == state.revision and as_seen.holder == seen.holder:
                    return msgspec.structs.replace(state.with_standing(standing), holder=line_of(self._me))
        return None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Do it in a thread that nobody has to wait for: a disk may hang for ever."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def told(result: T | None, error: Exception | None) -> None:
            self._is_busy = False
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type] # there is one or the other

        def run() -> None:
            result, failure = None, None
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - it goes to who waits for it
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(told, result, failure)

        self._is_busy = True
        threading.Thread(target=run, name="outside-store", daemon=True).start()
        return await done


def promote(path: Path, host: str, *, may_lose: bool = False) -> None:
    """Name the primary in the file of a host: of the one that is to be it, and of the one that was it before.

    Args:
        path: of the file.
        host: who is the primary from now on.
        may_lose: also if it may not have everything that was acknowledged.

    Raises:
        PromotionError: it may not have everything.
        OSError: the file cannot be read or written.
        NoAnswerError: the file is none of ours.
    """
    with _locked(path):
        state = _read(path)
        if state.primary == host:
            return
        known = None if state.standing is None else state.standing.standing
        if known is not None and host not in known.in_sync and not may_lose:
            have = ", ".join(sorted(known.in_sync))
            text = (
                f"{host} may not have everything that was acknowledged; {have} has. Promote that one, or say"
            )
            raise PromotionError(f"{text} that what is missing may be lost")
        if known is not None and host != known.primary:
            # Nobody else has everything any more. Epochs rise where they are used: the file of a host that steps aside
            # would refuse to follow what it takes for an earlier epoch.
            epoch = known.epoch + (PROMOTION_EPOCHS if state.host in ("", host) else 0)
            state = state.with_standing(Standing(epoch, host, frozenset((host,))))
        _write(path, msgspec.structs.replace(state, primary=host, holder=""))


def is_named(path: Path, host: str) -> bool:
    """Tell whether the file of a host names this one as the primary; one that is none of ours names nobody.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        return _read(path).primary == host
    except NoAnswerError:
        return False


def is_of(path: Path, host: str) -> bool:
    """Tell whether the file is that of this host; one that is none of ours is nobody's.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        return _read(path).host == host
    except NoAnswerError:
        return False


def note(path: Path, standing: Standing) -> None:
    """Keep what the primary told its standby, in the file of the standby.

    One of an earlier epoch changes nothing, unless it is from the host that the operator named.

    Raises:
        OSError: the file cannot be read or written.
        NoAnswerError: the file is none of ours.
    """
    with _locked(path):
        state = _read(path)
        known = state.standing
        if known is not None and (
            standing == known.standing or (standing.epoch < known.epoch and standing.primary != state.primary)
        ):
            return
        _write(path, state.with_standing(standing))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Be the only one that reads and writes the file."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(path: Path) -> _State:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_State)
    except FileNotFoundError:
        return _State()
    except msgspec.DecodeError as error:
        raise NoAnswerError(f"{path} cannot be read: {error}") from None


def _write(path: Path, state: _State) -> None:
    write_in_turns(path, msgspec.json.format(msgspec.json.encode(state)) + b"\n")
