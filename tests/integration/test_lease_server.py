"""The server of Leases for tests does what the API server of Kubernetes is documented to do.

That is: concurrency control and consistency by `resourceVersion`, the Status that refuses, and which Leases are valid.
"""

from __future__ import annotations

import copy
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.lease_server import API, LeaseServer

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASE = {"apiVersion": API, "kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}
ALL = f"/apis/{API}/namespaces/n/leases"
ONE = f"{ALL}/l"


@pytest.fixture
def server() -> Iterator[LeaseServer]:
    with LeaseServer() as server:
        yield server


def ask(
    server: LeaseServer, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"{server.url}{path}", data, given, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def with_spec(lease: dict[str, Any], **spec: Any) -> dict[str, Any]:
    changed = copy.deepcopy(lease)
    changed["spec"].update(spec)
    return changed


def reason(answer: tuple[int, dict[str, Any]]) -> tuple[int, str]:
    status, body = answer
    assert (body["kind"], body["status"], body["code"]) == ("Status", "Failure", status)
    return status, body["reason"]


def test_a_lease_is_created_once_and_missing_before(server: LeaseServer) -> None:
    assert reason(ask(server, "GET", ONE)) == (404, "NotFound")
    status, lease = ask(server, "POST", ALL, LEASE)
    assert status == 201
    assert lease["metadata"]["uid"]
    assert ask(server, "GET", ONE) == (200, lease)
    assert reason(ask(server, "POST", ALL, LEASE)) == (409, "AlreadyExists")


def test_an_update_names_the_version_that_it_changes(server: LeaseServer) -> None:
    _, first = ask(server, "POST", ALL, LEASE)
    status, second = ask(server, "PUT", ONE, with_spec(first, holderIdentity="b"))
    assert status == 200
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    assert reason(ask(server, "PUT", ONE, with_spec(first, holderIdentity="c"))) == (409, "Conflict")
    assert reason(ask(server, "PUT", ONE, LEASE)) == (422, "Invalid")
    assert ask(server, "GET", ONE)[1]["spec"]["holderIdentity"] == "b"


def test_an_update_that_changes_nothing_leaves_the_version(server: LeaseServer) -> None:
    _, lease = ask(server, "POST", ALL, LEASE)
    assert ask(server, "PUT", ONE, lease) == (200, lease)


def test_of_updates_at_the_same_time_one_is_carried_out(server: LeaseServer) -> None:
    _, lease = ask(server, "POST", ALL, LEASE)
    with ThreadPoolExecutor(8) as pool:
        wanted = [with_spec(lease, holderIdentity=f"h{number}") for number in range(8)]
        answers = list(pool.map(lambda body: ask(server, "PUT", ONE, body)[0], wanted))
    assert sorted(answers) == [200] + [409] * 7


def test_an_object_that_was_deleted_is_not_written_again_under_its_id(server: LeaseServer) -> None:
    _, lease = ask(server, "POST", ALL, LEASE)
    assert ask(server, "DELETE", ONE)[0] == 200
    assert reason(ask(server, "PUT", ONE, lease)) == (409, "Conflict")
    # A Lease may be created by an update.
    assert ask(server, "PUT", ONE, LEASE)[0] == 201


def test_a_token_that_is_not_valid_is_refused(server: LeaseServer) -> None:
    server.tokens = {"right"}
    assert reason(ask(server, "GET", ONE)) == (401, "Unauthorized")
    assert reason(ask(server, "GET", ONE, Authorization="Bearer wrong")) == (401, "Unauthorized")
    assert reason(ask(server, "GET", ONE, Authorization="Bearer right")) == (404, "NotFound")


def test_values_that_no_lease_has_are_refused(server: LeaseServer) -> None:
    for spec, refused in (
        ({"leaseDurationSeconds": 0}, (422, "Invalid")),
        ({"leaseTransitions": -1}, (422, "Invalid")),
        ({"renewTime": "2026-01-01T00:00:00Z"}, (400, "BadRequest")),
    ):
        assert reason(ask(server, "POST", ALL, with_spec(LEASE, **spec))) == refused
    assert ask(server, "POST", ALL, with_spec(LEASE, renewTime="2026-01-01T00:00:00.000001Z"))[0] == 201
