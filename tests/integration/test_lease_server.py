"""The server of Leases for tests does what the API server of Kubernetes does: where there is one it is asked the same.

That is: concurrency control and consistency by `resourceVersion`, the Status that refuses, and which Leases are valid.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.api_server import NAMESPACE, TOKEN, Account
from tests.integration.lease_server import API, LeaseServer

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASE = {"apiVersion": API, "kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}
ALL = f"/apis/{API}/namespaces/{NAMESPACE}/leases"
ONE = f"{ALL}/l"


@pytest.fixture(params=["double", "real"])
def account(request: pytest.FixtureRequest) -> Iterator[Account]:
    """Give an account at a server that has no Lease."""
    if request.param == "real":
        account = request.getfixturevalue("api_server").account()
        account.ask("DELETE", ONE)
        yield account
        return
    with LeaseServer() as server:
        server.tokens = {TOKEN}
        yield Account(server.url, TOKEN)


def with_spec(lease: dict[str, Any], **spec: Any) -> dict[str, Any]:
    changed = copy.deepcopy(lease)
    changed["spec"].update(spec)
    return changed


def reason(answer: tuple[int, dict[str, Any]]) -> tuple[int, str]:
    status, body = answer
    assert (body["kind"], body["status"], body["code"]) == ("Status", "Failure", status)
    return status, body["reason"]


def test_a_lease_is_created_once_and_missing_before(account: Account) -> None:
    assert reason(account.ask("GET", ONE)) == (404, "NotFound")
    status, lease = account.ask("POST", ALL, LEASE)
    assert status == 201
    assert lease["metadata"]["uid"]
    assert account.ask("GET", ONE) == (200, lease)
    assert reason(account.ask("POST", ALL, LEASE)) == (409, "AlreadyExists")


def test_an_update_names_the_version_that_it_changes(account: Account) -> None:
    _, first = account.ask("POST", ALL, LEASE)
    status, second = account.ask("PUT", ONE, with_spec(first, holderIdentity="b"))
    assert status == 200
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    assert reason(account.ask("PUT", ONE, with_spec(first, holderIdentity="c"))) == (409, "Conflict")
    assert reason(account.ask("PUT", ONE, LEASE)) == (422, "Invalid")
    assert account.ask("GET", ONE)[1]["spec"]["holderIdentity"] == "b"


def test_an_update_that_changes_nothing_leaves_the_version(account: Account) -> None:
    _, lease = account.ask("POST", ALL, LEASE)
    assert account.ask("PUT", ONE, lease) == (200, lease)


def test_of_updates_at_the_same_time_one_is_carried_out(account: Account) -> None:
    _, lease = account.ask("POST", ALL, LEASE)
    with ThreadPoolExecutor(8) as pool:
        wanted = [with_spec(lease, holderIdentity=f"h{number}") for number in range(8)]
        answers = list(pool.map(lambda body: account.ask("PUT", ONE, body)[0], wanted))
    assert sorted(answers) == [200] + [409] * 7


def test_an_object_that_was_deleted_is_not_written_again_under_its_id(account: Account) -> None:
    _, lease = account.ask("POST", ALL, LEASE)
    assert account.ask("DELETE", ONE)[0] == 200
    assert reason(account.ask("PUT", ONE, lease)) == (409, "Conflict")
    # A Lease may be created by an update.
    assert account.ask("PUT", ONE, LEASE)[0] == 201


def test_a_token_that_is_not_valid_is_refused(account: Account) -> None:
    for token in ("", "wrong"):
        assert reason(account.with_token(token).ask("GET", ONE)) == (401, "Unauthorized")
    assert reason(account.ask("GET", ONE)) == (404, "NotFound")


def test_values_that_no_lease_has_are_refused(account: Account) -> None:
    for spec, refused in (
        ({"leaseDurationSeconds": 0}, (422, "Invalid")),
        ({"leaseTransitions": -1}, (422, "Invalid")),
        ({"renewTime": "2026-01-01T00:00:00Z"}, (400, "BadRequest")),
    ):
        assert reason(account.ask("POST", ALL, with_spec(LEASE, **spec))) == refused
    assert account.ask("POST", ALL, with_spec(LEASE, renewTime="2026-01-01T00:00:00.000001Z"))[0] == 201
