"""etcd as the outside store where things go wrong: members die and hang, answers are lost, strangers are kept out."""

from __future__ import annotations

import asyncio
import base64
import signal
import uuid
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from cluster.configuration.standby import StandbySection, faults_of
from cluster.standby.pair.outside import Answer, Holder, Read, Renew, Request, Seen, Standing, Swap, Take
from cluster.standby.stores.etcd import EtcdStore, Login
from cluster.standby.stores.etcd_words import Transactions
from cluster.standby.stores.http import Servers, Trust
from cluster.standby.stores.opening import open_store
from cluster.standby.stores.store import NoAnswerError
from tests.integration.certificates import Authority
from tests.integration.etcd_servers import ELECTION_MS, Etcd, Tls, needs_etcd
from tests.integration.outside_worlds import ANSWER_S
from tests.integration.swallowing_proxy import SwallowingProxy
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from cluster.standby.stores.store import Store

pytestmark = pytest.mark.requirement("R270")

A, B = Holder("a", "1"), Holder("b", "1")
FIRST = Standing(1, "a", frozenset("a"))
BOTH = Standing(1, "a", frozenset("ab"))
LIMIT_S = 100.0
LEASE_S = 2
#: Of a user of etcd; nobody may ever read it in a reason.
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    needs_etcd()
    with Etcd(tmp_path_factory.mktemp("etcd"), members=3) as etcd:
        yield etcd


def with_stores(urls: list[str], tmp_path: Path, test: Callable[[Any], Coroutine[None, None, None]]) -> None:
    """Run a test with what opens stores of one pair."""

    async def whole() -> None:
        section = StandbySection(store="etcd", endpoints=urls, lease_seconds=LEASE_S)
        node_id = uuid.uuid4().hex
        stores: list[Store] = []

        def opens(me: Holder) -> Store:
            stores.append(open_store(section, node_id, me, tmp_path))
            return stores[-1]

        opens.node_id = node_id  # type: ignore[attr-defined] # some look into etcd by themselves
        try:
            await asyncio.wait_for(test(opens), LIMIT_S)
        finally:
            for store in stores:
                await store.close()

    asyncio.run(whole())


async def insist(store: Store, request: Request) -> Answer:
    """Ask until there is an answer."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LIMIT_S / 2
    while True:
        try:
            return await store.ask(1, request, 1.0)
        except NoAnswerError:
            assert loop.time() < deadline, "there is no answer at all"
            await asyncio.sleep(0.05)


async def taken(store: Store, standing: Standing = FIRST) -> Seen:
    seen = (await insist(store, Read())).seen
    answer = await store.ask(2, Take(seen, standing), ANSWER_S)
    assert answer.is_done
    return answer.seen


def test_a_leader_that_dies_is_gone_on_without_and_without_a_majority_there_is_no_answer(
    three: Etcd, tmp_path: Path
) -> None:
    async def test(opens: Any) -> None:
        a, b = opens(A), opens(B)
        first = await taken(a)
        leader = three.leader()
        leader.kill()
        swapped = await insist(a, Swap(first.revision, BOTH))
        # The answer to a request that was carried out may have been lost.
        assert swapped.seen.standing == BOTH
        other = next(member for member in three.members if member.is_up)
        other.kill()
        with pytest.raises(NoAnswerError, match="no connection"):
            await b.ask(3, Read(), 1.0)
        with pytest.raises(NoAnswerError):
            await a.ask(3, Renew(), 1.0)
        await asyncio.to_thread(three.restart, other)
        assert (await insist(b, Read())).seen.standing == BOTH
        await asyncio.to_thread(three.restart, leader)

    with_stores(three.urls, tmp_path, test)


def test_a_leader_that_was_stopped_takes_no_lease_back_that_was_renewed_elsewhere(
    three: Etcd, tmp_path: Path
) -> None:
    """When it goes on it believes to lead still, and that leases have ended of which it has not heard since."""

    async def test(opens: Any) -> None:
        a, b = opens(A), opens(B)
        await taken(a)
        leader = three.leader()
        leader.signal(signal.SIGSTOP)
        try:
            loop = asyncio.get_running_loop()
            end = loop.time() + LEASE_S + 2 * ELECTION_MS / 1_000
            while loop.time() < end:
                renewed = await insist(a, Renew())
                assert renewed.seen.holder == A
                await asyncio.sleep(0.3)
        finally:
            leader.signal(signal.SIGCONT)
        for _ in range(10):
            renewed = await insist(a, Renew())
            assert (renewed.is_done, renewed.seen.holder) == (True, A)
            assert (await insist(b, Read())).seen.holder == A
            await asyncio.sleep(0.1)

    with_stores(three.urls, tmp_path, test)


def test_a_member_that_hangs_is_asked_once_and_a_renewal_is_two_requests(three: Etcd, tmp_path: Path) -> None:
    hung, others = three.members[0], three.members[1:]

    async def test() -> None:
        endpoints = Servers([hung.url, *(other.url for other in others)], Trust())
        store = EtcdStore(A, Transactions("p", uuid.uuid4().hex), endpoints, Login(), LEASE_S)
        try:
            await insist(store, Read())
            sent = endpoints.sent
            assert (await store.ask(1, Read(), ANSWER_S)).is_done
            assert endpoints.sent == sent + 1
            first = await taken(store)
            sent = endpoints.sent
            for request, most in ((Renew(), 2), (Swap(first.revision, BOTH), 1)):
                assert (await store.ask(1, request, ANSWER_S)).is_done
                assert endpoints.sent == sent + most
                sent = endpoints.sent
        finally:
            await store.close()

    hung.signal(signal.SIGSTOP)
    try:
        asyncio.run(asyncio.wait_for(test(), LIMIT_S))
    finally:
        hung.signal(signal.SIGCONT)
    wait_for(lambda: hung.is_serving, bool, "etcd goes on")


def test_a_request_whose_answer_was_lost_is_repeated_and_carried_out_once(
    three: Etcd, tmp_path: Path
) -> None:
    member, transaction = three.members[0], "/v3/kv/txn"
    with SwallowingProxy(member.url) as proxy:

        async def test(opens: Any) -> None:
            key = base64.b64encode(f"angarium/{opens.node_id}/standing".encode()).decode()

            def changes() -> int:
                return int(member.post("/v3/kv/range", {"key": key})["kvs"][0]["version"])

            a = opens(A)
            proxy.swallows = [transaction, "/v3/lease/grant"]
            answer = await a.ask(2, Take(Seen(0, None, None), FIRST), ANSWER_S)
            assert (answer.is_done, answer.seen.standing, answer.seen.holder) == (True, FIRST, A)
            assert await asyncio.to_thread(changes) == 1
            proxy.swallows = [transaction]
            swapped = await a.ask(3, Swap(answer.seen.revision, BOTH), ANSWER_S)
            assert (swapped.is_done, swapped.seen.standing) == (True, BOTH)
            assert await asyncio.to_thread(changes) == 2
            proxy.swallows = [transaction]
            renewed = await a.ask(4, Renew(), ANSWER_S)
            assert (renewed.is_done, renewed.seen) == (True, swapped.seen)
            assert proxy.swallows == []

        with_stores([proxy.url], tmp_path, test)


def test_a_renewal_that_arrives_late_does_not_bring_an_older_lease_back(three: Etcd, tmp_path: Path) -> None:
    """The key of the holder would vanish with that lease, earlier than the holder believes."""
    member = three.members[0]
    with SwallowingProxy(member.url) as proxy:

        async def test(opens: Any) -> None:
            a = opens(A)
            await taken(a)
            proxy.delays = ["/v3/kv/txn"]
            for number in (2, 3):
                assert (await a.ask(number, Renew(), ANSWER_S)).is_done
            ((path, body),) = proxy.delayed
            late = await asyncio.to_thread(member.post, path, msgspec.json.decode(body))
            assert "succeeded" not in late

        with_stores([proxy.url], tmp_path, test)


@pytest.fixture(scope="module")
def tls(authority: Authority) -> Tls:
    """Where users are on, etcd's gateway refuses a client whose certificate has a common name."""
    return Tls(authority.issue("etcd"), authority.issue("broker", has_subject=False), authority.cert)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, tls: Tls) -> Iterator[Etcd]:
    """Give an etcd with certificates on both sides, and a user that may use the keys of pairs and no others."""
    needs_etcd()
    with Etcd(tmp_path_factory.mktemp("locked"), tls=tls) as etcd:
        member = etcd.members[0]
        first, end = (base64.b64encode(text).decode() for text in (b"angarium/", b"angarium0"))
        for path, body in (
            ("user/add", {"name": "root", "password": "of root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "broker", "password": PASSWORD}),
            ("role/add", {"name": "pairs"}),
            ("role/grant", {"name": "pairs", "perm": {"permType": 2, "key": first, "range_end": end}}),
            ("user/grant", {"user": "broker", "role": "pairs"}),
            ("enable", {}),
        ):
            member.post(f"/v3/auth/{path}", body)
        yield etcd


@pytest.fixture
def section(locked: Etcd, tls: Tls, tmp_path: Path) -> StandbySection:
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    section = StandbySection(
        store="etcd",
        listen="tcp://127.0.0.1:0",
        peer="tcp://127.0.0.1:0",
        endpoints=locked.urls,
        lease_seconds=LEASE_S,
        ca_file=str(tls.ca_file),
        cert_file=str(tls.client.cert),
        key_file=str(tls.client.key),
        username="broker",
        password_file=str(password),
    )
    assert faults_of(section, "n") == []
    return section


def as_configured(
    section: StandbySection, folder: Path, test: Callable[[Store], Coroutine[None, None, None]]
) -> None:
    async def whole() -> None:
        store = open_store(section, "n", A, folder)
        try:
            await asyncio.wait_for(test(store), LIMIT_S)
        finally:
            await store.close()

    asyncio.run(whole())


def test_a_user_with_a_certificate_logs_in_and_again_when_its_token_is_gone(
    section: StandbySection, locked: Etcd, tmp_path: Path
) -> None:
    member = locked.members[0]

    async def test(store: Store) -> None:
        first = await taken(store)
        token = member.post("/v3/auth/authenticate", {"name": "root", "password": "of root"})["token"]
        member.post("/v3/auth/role/add", {"name": "another"}, token)  # tokens from before are refused
        assert (await store.ask(3, Renew(), ANSWER_S)).is_done
        await asyncio.to_thread(member.kill)
        await asyncio.to_thread(locked.restart, member)  # it forgets all tokens
        renewed = await insist(store, Renew())
        assert (renewed.is_done, renewed.seen) == (True, first)

    as_configured(section, tmp_path, test)


@pytest.mark.parametrize(
    "wrong", ["password", "no password", "no certificate", "authority", "keys of others"]
)
def test_who_may_not_is_told_so_without_a_secret(
    section: StandbySection, tmp_path: Path, other_authority: Authority, wrong: str
) -> None:
    given: dict[str, Any] = {}
    match wrong:
        case "password":
            (tmp_path / "password").write_text(f"{PASSWORD} not\n")
            said = "does not let user broker in: 400 etcdserver: authentication failed"
        case "no password":
            (tmp_path / "password").write_text("\n")
            said = "its first line is empty"
        case "no certificate":
            given, said = {"cert_file": "", "key_file": ""}, "TLS failed|the connection failed"
        case "authority":
            given, said = {"ca_file": str(other_authority.cert)}, "its certificate is not valid"
        case "keys of others":
            given, said = {"prefix": "others"}, "permission denied"

    async def test(store: Store) -> None:
        with pytest.raises(NoAnswerError, match=said) as caught:
            await store.ask(1, Read(), ANSWER_S)
        assert PASSWORD not in str(caught.value)

    as_configured(msgspec.structs.replace(section, **given), tmp_path, test)


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates") / "other")
