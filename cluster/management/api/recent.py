"""Answers of a moment ago: what many open consoles ask for every few seconds, the node makes once for all of them.

Who takes one says how old it may be (`Cache-Control: max-age=10`, RFC 9111, section 5.2.1.1); everybody else gets a new
one. It is kept for `PAUSE_PER_WORK` times as long as it took to make, so consoles together have the node work on it for
a fiftieth of the time, however many they are; and for `KEPT_MIN_S`, within which the node measures nothing anew. Of
lists the rows are kept, of which others want another page, and the pages.

They are for all operators of the same scope, and of the same role where not every role may see it: the controller
judges by nothing else, and tells both with each login. It makes an answer by these rights or refuses: should those of
who asks change before it comes to that, it would be one for others. After a change over the management API nobody gets
anything of before.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors, wire
from cluster.admin.operations import CHANGES, OPERATIONS, VIEWER
from cluster.management.api.resources import page_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from cluster.management.access.outcomes import Operator
    from cluster.management.api.pages import Page, Row, Wanted
    from cluster.management.api.resources import Ask

#: An answer is kept for so many times as long as it took to make.
PAUSE_PER_WORK: Final = 50
#: ... and for so long: rates and processes are measured once a second, and a page asks every three.
KEPT_MIN_S: Final = 2.0
#: The oldest one that anybody gets.
AGE_MAX_S: Final = 30.0
#: Answers, rows and pages that are kept, or being made; of one more nothing is kept.
LISTS_MAX: Final = 64
#: Values in all that is kept, of 100 bytes or so; what would be more is for those who wait for it alone.
VALUES_MAX: Final = 500_000

_MAX_AGE: Final = re.compile(r"max-age=([0-9]{1,9})")


class _Key(NamedTuple):
    """What makes two answers the same; without `wanted` it is about all rows, and not about a page of them."""

    #: Empty: every role may see it.
    role: str
    vpn: str
    #: As of `Operator`.
    vpns: int
    operation: str
    arguments: bytes
    wanted: Wanted | None = None


class _Made(NamedTuple):
    """What an operation has answered, or a page of that, and how old it was when it was asked for."""

    value: Any
    rows: Sequence[Row]
    age_s: float


@dataclass(slots=True, eq=False)
class _Kept:
    """What is made, or was."""

    #: As old as this is what is in it, on the clock of who keeps it.
    since: float
    task: asyncio.Task[_Made]
    #: In its rows; none while it is made.
    values: int = 0
    #: Drops it; none while it is made. It holds it until then, so it goes with it.
    timer: asyncio.TimerHandle | None = None


def oldest_s_of(header: str) -> float:
    """Give how old an answer may be by a header Cache-Control; 0: it is to be a new one."""
    for directive in header.lower().split(","):
        if match := _MAX_AGE.fullmatch(directive.strip()):
            return min(float(match[1]), AGE_MAX_S)
    return 0.0


class Recent:
    """The answers that were made last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[_Key, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def noting(self, ask: Ask) -> Ask:
        """Give the same questions, after which nothing of before a change is known."""

        async def asked(operation: str, arguments: dict[str, Any]) -> Any:
            try:
                return await ask(operation, arguments)
            finally:
                if operation in CHANGES:
                    for key in list(self._kept):
                        self._forget(key)

        return asked

    async def take(self, key: _Key, oldest_s: float, make: Callable[[], Coroutine[Any, Any, _Made]]) -> _Made:
        """Give what is no older, or make it.

        Raises:
            AngariumError: it is refused.
        """
        now = self._clock()
        known = self._kept.get(key)
        if known is not None and now - known.since <= oldest_s:
            try:
                made = await asyncio.shield(known.task)
                return made._replace(age_s=now - known.since)
            except errors.AngariumError:
                return await make()  # the refusal is that of somebody else
        if known is None and len(self._kept) >= LISTS_MAX:
            return await make()
        self._forget(key)
        # Who asked first may go away, while others wait for it.
        begun = self._kept[key] = _Kept(now, asyncio.create_task(make()))
        begun.task.add_done_callback(lambda _: self._keep(key, begun))
        return await asyncio.shield(begun.task)

    def _keep(self, key: _Key, kept: _Kept) -> None:
        is_refused = kept.task.cancelled() or kept.task.exception() is not None
        if self._kept.get(key) is not kept:
            return
        if is_refused:
            self._forget(key)
            return
        made = kept.task.result()
        kept.values = sum(map(len, made.rows))
        if sum(one.values for one in self._kept.values()) > VALUES_MAX:
            self._forget(key)
            return
        life_s = min(max(PAUSE_PER_WORK * (self._clock() - kept.since), KEPT_MIN_S), AGE_MAX_S)
        kept.since -= made.age_s
        kept.timer = asyncio.get_running_loop().call_later(life_s, self._forget, key)

    def _forget(self, key: _Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None and kept.timer is not None:
            kept.timer.cancel()


class Shared:
    """Answers for one operator, made of what others like him have asked for a moment ago."""

    def __init__(
        self,
        recent: Recent,
        asking: Callable[[tuple[str, str]], Ask],
        me: Operator,
        oldest_s: float,
    ) -> None:
        """Take from what is kept.

        Args:
            recent: keeps it.
            asking: gives how he asks by this role and Message VPN, and by no others.
            me: the operator.
            oldest_s: how old an answer may be.
        """
        self._recent = recent
        self._me = me
        self._ask = asking((me.role, me.vpn))
        self._oldest_s = oldest_s
        #: Of the answer that was given.
        self.age_s = 0.0

    async def value(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Give what an operation answers.

        Raises:
            AngariumError: it is refused.
        """
        found = await self._whole(operation, arguments)
        self.age_s = found.age_s
        return found.value

    async def page(self, operation: str, arguments: dict[str, Any], wanted: Wanted) -> Page:
        """Give a page of what an operation lists.

        Raises:
            AngariumError: it is refused.
        """

        async def make() -> _Made:
            ages = [0.0]

            async def rows(asked: str, its_arguments: dict[str, Any]) -> Any:
                made = await self._whole(asked, its_arguments)
                ages.append(made.age_s)
                return made.value

            page = await page_of(operation, arguments, wanted, rows)
            return _Made(page, page.rows, max(ages))

        found = await self._recent.take(self._key(operation, arguments, wanted), self._oldest_s, make)
        self.age_s = found.age_s
        page: Page = found.value
        return page

    async def _whole(self, operation: str, arguments: dict[str, Any]) -> _Made:
        async def make() -> _Made:
            value = await self._ask(operation, arguments)
            return _Made(value, value if isinstance(value, list) else [value], 0.0)

        return await self._recent.take(self._key(operation, arguments), self._oldest_s, make)

    def _key(self, operation: str, arguments: dict[str, Any], wanted: Wanted | None = None) -> _Key:
        role, scope, *_ = OPERATIONS[operation]
        is_for_all = role == VIEWER and scope in ("node", "vpn", "vpns")
        its_role = "" if is_for_all else self._me.role
        return _Key(its_role, self._me.vpn, self._me.vpns, operation, wire.pack(arguments), wanted)
