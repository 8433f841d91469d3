"""A Lease as the outside store where things go wrong: answers are lost, others are faster, tokens are replaced."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from cluster.configuration.standby import StandbySection
from cluster.standby.pair.outside import Holder, Read, Renew, Seen, Standing, Swap, Take
from cluster.standby.stores.opening import open_store
from cluster.standby.stores.store import NoAnswerError
from tests.integration.certificates import Authority
from tests.integration.lease_server import LeaseServer
from tests.integration.outside_worlds import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from cluster.standby.stores.store import Store
    from tests.integration.certificates import Pair

pytestmark = pytest.mark.requirement("R270")

A = Holder("a", "1")
FIRST = Standing(1, "a", frozenset("a"))
BOTH = Standing(1, "a", frozenset("ab"))
TOKEN = "a token of a pod"
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def server(server_pair: Pair) -> Iterator[LeaseServer]:
    with LeaseServer(server_pair.server_context()) as server:
        yield server


@pytest.fixture
def account(tmp_path: Path, authority: Authority, server: LeaseServer) -> Path:
    """Give what a pod has: the directory of its service account."""
    (tmp_path / "ca.crt").write_bytes(authority.cert.read_bytes())
    (tmp_path / "namespace").write_text("prod")
    (tmp_path / "token").write_text(TOKEN)
    server.tokens = {TOKEN}
    return tmp_path


class Opener:
    """Opens stores of one pair, as in a pod."""

    def __init__(self, server: LeaseServer, account: Path, given: dict[str, Any]) -> None:
        self._section = StandbySection(store="kubernetes", endpoints=[server.url], **given)
        self._account = account
        self.node_id = uuid.uuid4().hex
        self.stores: list[Store] = []

    def __call__(self, me: Holder = A) -> Store:
        self.stores.append(open_store(self._section, self.node_id, me, self._account, self._account))
        return self.stores[-1]


def run(
    server: LeaseServer, account: Path, test: Callable[[Opener], Coroutine[None, None, None]], **given: Any
) -> None:
    async def whole() -> None:
        opens = Opener(server, account, given)
        try:
            await asyncio.wait_for(test(opens), LIMIT_S)
        finally:
            for store in opens.stores:
                await store.close()

    asyncio.run(whole())


async def taken(store: Store) -> Seen:
    answer = await store.ask(1, Take(Seen(0, None, None), FIRST), ANSWER_S)
    assert answer.is_done
    return answer.seen


def test_the_lease_shows_people_who_has_it(server: LeaseServer, account: Path) -> None:
    async def test(opens: Opener) -> None:
        await taken(opens())
        lease = server.leases["prod", f"angarium-{opens.node_id}"]
        spec = lease["spec"]
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (
            "a_1",
            3,
            1,
        )
        kept = msgspec.json.decode(lease["metadata"]["annotations"]["angarium-standing"])
        change = kept.pop("change")
        assert kept == {"epoch": 1, "primary": "a", "in_sync": ["a"], "revision": 1}
        assert change

    run(server, account, test)


def test_a_write_whose_answer_was_lost_is_known_to_have_been_carried_out(
    server: LeaseServer, account: Path
) -> None:
    async def test(opens: Opener) -> None:
        store = opens()
        server.swallows = 1
        try:
            first = await taken(store)
        except NoAnswerError:  # a POST is not sent again by itself, and there is one server
            first = (await store.ask(1, Read(), ANSWER_S)).seen
        assert (first.standing, first.holder, first.revision) == (FIRST, A, 1)
        server.swallows = 1
        for request in (Swap(1, BOTH), Renew()):
            answer = await store.ask(2, request, ANSWER_S)
            assert (answer.is_done, answer.seen) == (True, Seen(2, BOTH, A))

    run(server, account, test)


def test_somebody_who_changes_the_lease_in_between_only_costs_another_round(
    server: LeaseServer, account: Path
) -> None:
    """Whatever it was, a label for instance: what was decided upon is looked at again."""

    async def test(opens: Opener) -> None:
        store, again = opens(), opens()
        first = await taken(store)
        # The same holder twice: both may renew and change, and neither undoes what the other one wrote.
        server.answered.clear()
        requests = [store.ask(2, Renew(), ANSWER_S), again.ask(3, Swap(first.revision, BOTH), ANSWER_S)]
        answers = await asyncio.gather(*requests)
        assert [answer.is_done for answer in answers] == [True, True]
        assert (await store.ask(4, Read(), ANSWER_S)).seen == Seen(2, BOTH, A)

    run(server, account, test)


def test_a_token_that_was_replaced_is_read_again(server: LeaseServer, account: Path) -> None:
    async def test(opens: Opener) -> None:
        store = opens()
        await taken(store)
        server.tokens = {"the next one"}
        with pytest.raises(NoAnswerError, match="the API server refused: 401 Unauthorized") as caught:
            await store.ask(2, Renew(), ANSWER_S)
        assert TOKEN not in str(caught.value)
        (account / "token").write_text("the next one")
        assert (await store.ask(3, Renew(), ANSWER_S)).is_done

    run(server, account, test)


def test_a_server_that_cannot_is_no_answer(server: LeaseServer, account: Path) -> None:
    async def test(opens: Opener) -> None:
        store = opens()
        await taken(store)
        server.fails = 1
        with pytest.raises(NoAnswerError, match="500 etcdserver: request timed out"):
            await store.ask(2, Renew(), ANSWER_S)
        assert (await store.ask(3, Renew(), ANSWER_S)).is_done

    run(server, account, test)


def test_a_lease_that_was_deleted_is_forgotten(server: LeaseServer, account: Path) -> None:
    async def test(opens: Opener) -> None:
        store = opens()
        await taken(store)
        del server.leases["prod", f"angarium-{opens.node_id}"]
        refused = await store.ask(2, Renew(), ANSWER_S)
        assert (refused.is_done, refused.seen) == (False, Seen(0, None, None))

    run(server, account, test)


def test_another_server_than_that_of_the_cluster_is_told_nothing(
    server: LeaseServer, account: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Authority(tmp_path_factory.mktemp("certificates") / "other")
    server.answered.clear()

    async def test(opens: Opener) -> None:
        with pytest.raises(NoAnswerError, match="its certificate is not valid"):
            await opens().ask(1, Read(), ANSWER_S)

    run(server, account, test, ca_file=str(other.cert))
    assert server.answered == []
