"""The thread of a blocking client: an event loop in the background, and how its objects are shown to other threads.

A `Portal` runs coroutines in its thread and waits for them. A `Facade` is what an application holds of an object that
lives there. Its methods and attributes are those of the object, declared in one line each:

    class Group(Facade):
        name = Mirrored[str]()                 # read as it is
        plan = waits(asynchronous.Group.plan)  # run in the thread, and waited for; type checkers see its arguments

What is hot crosses in portions and not by this: see `angarium.blocking.client`, `subscription` and `flow`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import threading
import time
from concurrent.futures import CancelledError
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    overload,
)

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future
    from types import TracebackType

#: How often a caller that waits looks whether the thread is still there.
LOOK_INTERVAL_S: Final = 1.0
#: How long the thread may take to end; only an `on_event` that does not return makes it late.
STOP_TIMEOUT_S: Final = 5.0

_P = ParamSpec("_P")
_T = TypeVar("_T")
_F = TypeVar("_F")


class Portal:
    """A thread with an event loop; work crosses to it from any other thread."""

    def __init__(self) -> None:
        # The default loop of Windows cannot watch sockets.
        self._loop = asyncio.SelectorEventLoop() if sys.platform == "win32" else asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="angarium client")
        #: Nothing that waits for the thread will be answered any more.
        self._is_stopped = False
        self._pid = os.getpid()
        self._thread.start()

    @property
    def is_foreign(self) -> bool:
        """Whether this is a child of the process that has the thread."""
        return os.getpid() != self._pid

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the thread and wait for it.

        Raises:
            InvalidRequestError: this is the thread, which cannot wait for itself (INVALID_ARGUMENT).
            ConnectionLostError: the thread has ended (CLIENT_CLOSED), or is of another process (FORKED).
        """
        return self.wait(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine in the thread; `call` waits for it, too.

        Raises:
            AngariumError: as for `call`.
        """
        try:
            self.check_thread()
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except errors.AngariumError:
            work.close()
            raise
        except RuntimeError:
            work.close()
            raise errors.error_for(errors.CLIENT_CLOSED) from None

    def wait(self, future: Future[_T], timeout_s: float | None = None) -> _T:
        """Wait for what the thread does.

        Raises:
            TimeoutExpiredError: it was not done in time (TIMEOUT).
            ConnectionLostError: the thread has ended (CLIENT_CLOSED).
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while True:
                left_s = LOOK_INTERVAL_S if deadline is None else deadline - time.monotonic()
                try:
                    return future.result(min(max(left_s, 0), LOOK_INTERVAL_S))
                except CancelledError:  # with all that runs in the thread when it ends
                    raise errors.error_for(errors.CLIENT_CLOSED) from None
                except TimeoutError:
                    if future.done():  # an error of the call itself, or an answer in this very moment
                        return future.result()
                    if self._is_stopped:
                        raise errors.error_for(errors.CLIENT_CLOSED) from None
                    if deadline is not None and time.monotonic() >= deadline:
                        raise errors.error_for(errors.TIMEOUT, f"after {timeout_s} s") from None
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run something in the thread soon.

        Raises:
            ConnectionLostError: the thread has ended (CLIENT_CLOSED).
        """
        try:
            self._loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError:  # The loop is closed.
            raise errors.error_for(errors.CLIENT_CLOSED) from None

    def post(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run something in the thread soon; nothing happens if it has ended.

        Raises:
            ConnectionLostError: the thread is of another process (FORKED).
        """
        self.check_process()
        with contextlib.suppress(RuntimeError):  # The loop is closed, and nobody can be told any more.
            self._loop.call_soon_threadsafe(work, *arguments)

    def check_process(self) -> None:
        """Return unless this is a child of the process that has the thread.

        Raises:
            ConnectionLostError: it is (FORKED).
        """
        if os.getpid() != self._pid:
            raise errors.error_for(errors.FORKED, f"the client was connected by process {self._pid}")

    def check_thread(self) -> None:
        """Return if this thread may wait for the other one.

        Raises:
            InvalidRequestError: it is the other one (INVALID_ARGUMENT).
            ConnectionLostError: the other one is of another process (FORKED).
        """
        self.check_process()
        if threading.current_thread() is self._thread:
            raise errors.invalid("on_event cannot wait for its own client")

    def stop(self) -> None:
        """End the thread, and cancel what runs in it."""
        with contextlib.suppress(RuntimeError):  # It was stopped before.
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            self._is_stopped = True


def await_signal(signal: threading.Event, timeout_s: float | None, until: float | None) -> None:
    """Wait until somebody says that there may be a message, which another thread may take.

    Args:
        signal: says it.
        timeout_s: how long the caller waits in all, or for ever.
        until: when that is over, by the monotonic clock.

    Raises:
        TimeoutExpiredError: it is over (TIMEOUT).
    """
    if not signal.wait(None if until is None else max(until - time.monotonic(), 0)):
        raise errors.error_for(errors.TIMEOUT, f"no message within {timeout_s} s")


class CallbackThreads:
    """The threads that call the callback of a subscription or flow, none without one."""

    def __init__(
        self, serve: Callable[[Any], None], callback: Callable[..., None] | None, concurrency: int
    ) -> None:
        """Run `serve` with the callback in so many threads."""
        self._threads = [
            threading.Thread(target=serve, args=(callback,), daemon=True, name="angarium callback")
            for _ in range(concurrency if callback is not None else 0)
        ]
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the calls that are running; what they serve has ended."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)


class _Closable(Protocol):
    def close(self) -> None:
        """End it."""


class Closing:
    """A context manager that closes itself at its end."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self: _Closable,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Facade:
    """What an application holds of an object that lives in the thread of a client."""

    __slots__ = ("_inner", "_portal")

    def __init__(self, portal: Portal, inner: Any) -> None:
        """Show an object; only clients make facades."""
        self._portal = portal
        self._inner = inner

    def __str__(self) -> str:
        return str(self._inner)

    def __repr__(self) -> str:
        return repr(self._inner)


class Mirrored(Generic[_T]):
    """An attribute of the object behind a facade, read as it is."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._read = attrgetter(f"_inner.{name}")

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...

    @overload
    def __get__(self, facade: object, owner: type) -> _T: ...

    def __get__(self, facade: object, owner: type) -> Any:
        return self if facade is None else self._read(facade)


def waits(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Any, _P], _T]:
    """Give a method of a facade: it runs that of its object, by name, in the thread and waits for it."""
    name = method.__name__

    def call(facade: Any, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        found: _T = facade._portal.call(getattr(facade._inner, name)(*arguments, **options))
        return found

    functools.update_wrapper(call, method)
    return call


def opens(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]], show: Callable[[Portal, _T], _F]
) -> Callable[Concatenate[Any, _P], _F]:
    """Give such a method for one that gives another object of the thread, which is shown by a facade, too."""
    work = waits(method)

    def call(facade: Any, /, *arguments: _P.args, **options: _P.kwargs) -> _F:
        return show(facade._portal, work(facade, *arguments, **options))

    functools.update_wrapper(call, method)
    return call
