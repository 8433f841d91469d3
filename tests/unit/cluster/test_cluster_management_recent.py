"""Answers of a moment ago: made once for many who look, given to nobody who may not see them, gone after a change."""

from __future__ import annotations

import asyncio
import functools
import gc
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from cluster.management.access.outcomes import Operator
from cluster.management.api import recent as module
from cluster.management.api.pages import Wanted
from cluster.management.api.recent import AGE_MAX_S, KEPT_MIN_S, LISTS_MAX, Recent, Shared, oldest_s_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

ANNA = Operator("anna", "viewer", "", 1)
BERT = ANNA._replace(name="bert")
OF_VPN = Operator("carl", "viewer", "v1", 1)
ADMIN = Operator("dora", "administrator", "", 1)
FIRST, LAST = Wanted(column="name"), Wanted(column="name", is_descending=True)


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


class Rows(list[dict[str, Any]]):
    """A list that can be watched."""


class Node:
    """Answers each question with its number, when it is told to; each takes so many seconds of its clock."""

    def __init__(self, took_s: float = 1.0) -> None:
        self.now = 100.0
        self.took_s = took_s
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.refuses = False
        #: Role and Message VPN of all who ask, if they are no longer those that they were known by.
        self.rights: tuple[str, str] | None = None
        #: Each answer, as long as somebody has it.
        self.alive: list[weakref.ref[Rows]] = []
        self.recent = Recent(lambda: self.now)

    async def ask_by(self, rights: tuple[str, str] | None, operation: str, _arguments: dict[str, Any]) -> Any:
        self.asked.append(operation)
        number = len(self.asked)
        await self.may_answer.wait()
        self.now += self.took_s
        if self.refuses or rights not in (None, self.rights or rights):
            raise errors.error_for(errors.OPERATOR_DENIED, f"number {number}")
        rows = Rows({"name": letter, "number": number} for letter in "abc")
        self.alive.append(weakref.ref(rows))
        return rows

    async def look(
        self,
        me: Operator = ANNA,
        oldest_s: float = 10.0,
        wanted: Wanted = FIRST,
        operation: str = "clients.list",
        **arguments: Any,
    ) -> int:
        """Give the number of the question that a page was made of."""
        page = await self.shared(me, oldest_s).page(operation, arguments, wanted)
        number: int = page.rows[0]["number"]
        return number

    async def glance(self, me: Operator = ANNA, operation: str = "status", oldest_s: float = 10.0) -> int:
        """Give the number of the question that an answer was made of."""
        told = await self.shared(me, oldest_s).value(operation, {})
        number: int = told[0]["number"]
        return number

    def shared(self, me: Operator = ANNA, oldest_s: float = 10.0) -> Shared:
        return Shared(self.recent, lambda rights: partial(self.ask_by, rights), me, oldest_s)

    async def change(self, operation: str = "objects.create") -> Any:
        return await self.recent.noting(partial(self.ask_by, None))(operation, {})


@pytest.mark.parametrize(
    ("header", "oldest_s"),
    [
        ("", 0),
        ("no-cache", 0),
        ("max-age=0", 0),
        ("max-age=10", 10),
        ("No-Transform, Max-Age=3 ", 3),
        ("max-age=999999999", AGE_MAX_S),
        ("max-age=-1", 0),
        ("max-age=1e9", 0),
        ("s-max-age=5", 0),
        ("max-age=" + "9" * 5_000, 0),
    ],
)
def test_how_old_a_list_may_be_is_said_in_a_header(header: str, oldest_s: float) -> None:
    assert oldest_s_of(header) == oldest_s


@in_a_loop
async def test_those_who_look_at_once_get_one_list() -> None:
    node = Node()
    node.may_answer.clear()
    looks = [asyncio.create_task(node.look(me)) for me in (ANNA, BERT, ANNA)]
    await asyncio.sleep(0)
    node.may_answer.set()
    assert await asyncio.gather(*looks) == [1, 1, 1]
    assert await node.look() == 1
    assert len(node.asked) == 1


@in_a_loop
async def test_who_goes_away_takes_the_list_from_nobody() -> None:
    node = Node()
    node.may_answer.clear()
    first, other = asyncio.create_task(node.look()), asyncio.create_task(node.look(BERT))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    node.may_answer.set()
    assert await other == 1
    assert first.cancelled()


@in_a_loop
async def test_others_look_at_lists_of_their_own() -> None:
    node = Node()
    looks = [node.look(), node.look(OF_VPN), node.look(vpn="v1"), node.look(name="a*")]
    assert [await one for one in looks] == [1, 2, 3, 4]
    assert await node.look(OF_VPN) == 2


@in_a_loop
async def test_a_list_that_not_every_role_may_see_is_for_one_role() -> None:
    """Operators are objects that administrators alone see, by the same operation as others."""
    node = Node()
    assert await node.look(ADMIN, operation="objects.list", kind="operator") == 1
    node.refuses = True
    for one in (ANNA, OF_VPN):
        with pytest.raises(errors.ForbiddenError):
            await node.look(one, operation="objects.list", kind="operator")
    node.refuses = False
    assert await node.look(ADMIN, operation="objects.list", kind="operator") == 1
    assert await node.look(ADMIN) == await node.look(ANNA) == 4


@in_a_loop
async def test_who_gets_other_rights_while_he_asks_leaves_no_list_to_those_with_the_ones_of_before() -> None:
    """The command on the host changes an operator; the management process hears of it by his next question."""
    node = Node()
    for now in (("viewer", ""), ("viewer", "v2"), ("administrator", "v1")):
        node.rights = now
        with pytest.raises(errors.ForbiddenError):
            await node.look(OF_VPN)
        assert len(node.recent) == 0
    node.rights = ("viewer", "v1")
    assert await node.look(OF_VPN) == 4


@in_a_loop
async def test_what_everybody_looks_at_is_made_once_for_those_who_may_see_it() -> None:
    node = Node()
    assert await node.glance() == await node.glance(BERT) == await node.glance(ADMIN) == 1
    node.refuses = True
    with pytest.raises(errors.ForbiddenError):
        await node.glance(OF_VPN)
    node.refuses = False
    assert await node.glance() == 1
    assert await node.glance(operation="cluster.status") == 3
    assert await node.glance(operation="health") == await node.glance(BERT, "health") == 4
    assert await node.glance(ADMIN, "health") == 5, "nothing says of whom such an answer is"
    await node.change()
    assert await node.glance() == 7


@in_a_loop
async def test_a_message_vpn_that_is_made_again_is_another_one() -> None:
    """The command on the host deletes it, and who has a new one of its name may not see what was in the old one."""
    node = Node()
    assert await node.look(OF_VPN) == 1
    again = OF_VPN._replace(name="emil", vpns=2)
    assert await node.look(again) == await node.look(again) == 2


@in_a_loop
async def test_a_list_is_no_older_than_who_looks_wants_it() -> None:
    node = Node()
    assert await node.look() == 1
    node.now += 5
    assert await node.look(oldest_s=5.9) == 2
    shared = node.shared(oldest_s=5.9)
    node.now += 2
    page = await shared.page("clients.list", {}, FIRST)
    assert (page.rows[0]["number"], shared.age_s) == (2, 3.0)


@in_a_loop
async def test_another_page_is_made_of_the_same_rows_and_is_as_old_as_they_are() -> None:
    node = Node()
    assert await node.look() == 1
    node.now += 4
    other = node.shared()
    assert (await other.page("clients.list", {}, LAST)).rows[0] == {"name": "c", "number": 1}
    assert (len(node.asked), other.age_s) == (1, 5.0)
    node.now += 4
    again = node.shared()
    await again.page("clients.list", {}, LAST)
    assert (len(node.asked), again.age_s) == (1, 9.0)
    node.now += 2
    assert await node.look(wanted=LAST) == 2


@in_a_loop
async def test_a_list_is_kept_for_many_times_as_long_as_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    lives: list[float] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def call_later(life_s: float, *what: Any) -> asyncio.TimerHandle:
        lives.append(life_s)
        return later(0.0, *what)

    monkeypatch.setattr(loop, "call_later", call_later)
    for took_s, life_s in ((0.0, KEPT_MIN_S), (0.01, KEPT_MIN_S), (0.1, 5.0), (1.0, AGE_MAX_S)):
        node = Node(took_s)
        assert await node.glance() == 1
        assert lives.pop() == pytest.approx(life_s)
        await asyncio.sleep(0)  # it is dropped by the loop
        await asyncio.sleep(0)
        assert await node.glance() == 2
        lives.clear()


@in_a_loop
async def test_who_changes_something_sees_it_and_everybody_else_too() -> None:
    node = Node()
    assert await node.look() == 1
    await node.change()
    assert await node.look() == 3
    await node.change("audit")  # reads
    assert await node.look(BERT) == 3
    node.refuses = True
    with pytest.raises(errors.ForbiddenError):
        await node.change()  # whether it was done may be unknown
    node.refuses = False
    assert await node.look() == 6


@in_a_loop
async def test_a_list_that_nobody_can_get_any_more_is_in_no_memory() -> None:
    """A new one each second, of what is kept for 50, would be 50 lists; so would one after each change."""
    node = Node()

    def alive() -> int:
        gc.collect()
        return sum(one() is not None for one in node.alive)

    for number in range(5):
        assert await node.look(oldest_s=0.5) == number + 1
        node.now += 1
    assert alive() == 1
    await node.change()
    assert alive() == 0


@in_a_loop
async def test_a_list_that_was_begun_before_a_change_is_for_those_who_wait_for_it_alone() -> None:
    node = Node()
    node.may_answer.clear()
    before, change = asyncio.create_task(node.look()), asyncio.create_task(node.change())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    node.may_answer.set()
    await change
    after = await node.look()
    assert (await before, after) == (node.asked.index("clients.list") + 1, 3)


@in_a_loop
async def test_a_refusal_is_for_who_was_refused() -> None:
    node = Node()
    node.refuses = True
    node.may_answer.clear()
    looks = [asyncio.create_task(node.look(me)) for me in (ANNA, BERT)]
    await asyncio.sleep(0)
    node.may_answer.set()
    refused = await asyncio.gather(*looks, return_exceptions=True)
    assert [one.detail for one in refused if isinstance(one, errors.ForbiddenError)] == [
        "number 1",
        "number 2",
    ]
    node.refuses = False
    assert await node.look() == 3


@in_a_loop
async def test_no_more_lists_are_kept_than_there_may_be() -> None:
    node = Node()
    most = LISTS_MAX // 2  # the rows and a page of each
    for number in range(most + 3):
        assert await node.look(name=str(number)) == number + 1
    assert len(node.recent) == LISTS_MAX
    assert await node.look(name=str(most)) == most + 4
    assert await node.look(name="0", oldest_s=1_000) == 1


@in_a_loop
async def test_no_more_values_are_kept_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    monkeypatch.setattr(module, "VALUES_MAX", 24)  # rows and page of two lists
    assert [await node.look(name=name) for name in "abc"] == [1, 2, 3]
    assert [await node.look(name=name) for name in "abc"] == [1, 2, 4]
    node.now += 100
    assert [await node.look(name=name) for name in "abc"] == [5, 6, 7]
