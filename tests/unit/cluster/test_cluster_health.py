"""What the health endpoint says, and how it takes what clients send it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.configuration.config import NodeConfig, check_config, faults_of
from cluster.configuration.health import HealthSection
from cluster.controller.health.checks import SUPERVISOR_SILENT_S, Check, examine, passed
from cluster.controller.health.http import HEAD_BYTES_MAX, Answer, Incoming, Request
from cluster.controller.health.pages import PAGES, page
from tests.unit.cluster.controller_world import World, replies

READ = {"homes_ready": 2, "recovered": 1}


def node(phase: str = "running", **states: str) -> dict[str, Any]:
    rows = {"router_0": "ready", "worker_0": "ready", "worker_1": "ready", "controller_0": "ready", **states}
    return {
        "node": "n",
        "phase": phase,
        "workers": 2,
        "processes": [
            {
                "role": name[:-2],
                "index": int(name[-1]),
                "state": state,
                "restarts": 3,
                "progress": "block 7 of 9",
            }
            for name, state in rows.items()
        ],
    }


def wrong(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.text for check in checks if not check.ok}


# -- what is well --------------------------------------------------------------------------------------------


def test_a_node_with_everything_at_work_is_alive_started_and_ready() -> None:
    health = examine(node(), READ, [], 0.5)
    assert passed(health.live)
    assert passed(health.started)
    assert passed(health.ready)
    assert [check.name for check in health.ready] == ["node", "router.0", "worker.0", "worker.1", "spool"]


def test_a_process_that_does_not_work_is_named_with_what_it_does() -> None:
    assert wrong(examine(node(worker_1="starting"), READ, [], 0.5).ready) == {
        "worker.1": "is starting: block 7 of 9"
    }
    assert wrong(examine(node(router_0="restarting"), READ, [], 0.5).ready) == {
        "router.0": "is restarting, after 3 restarts (last: block 7 of 9); 'angarium events' says more"
    }


@pytest.mark.requirement("R281")
def test_a_full_disk_is_told_and_keeps_nobody_away() -> None:
    health = examine(node(), {**READ, "homes_full": [0, 1]}, [], 0.5)
    assert passed(health.ready)
    (spool,) = [check for check in health.ready if check.name == "spool"]
    assert spool.text == "takes nothing new: no room on the disk for worker 0, 1"


def test_a_spool_that_is_not_read_keeps_the_node_from_being_ready() -> None:
    assert (
        "1 of 2 workers" in wrong(examine(node(), {"homes_ready": 1, "recovered": 0}, [], 0.5).ready)["spool"]
    )
    assert list(wrong(examine(node(), {"homes_ready": 2, "recovered": 0}, [], 0.5).ready)) == ["spool"]
    assert list(wrong(examine(node(), None, [], 0.5).ready)) == ["spool"]


def test_links_are_told_and_not_judged() -> None:
    links = [{"name": "b", "state": "down", "error": "40103: no"}, {"name": "c", "state": "up", "error": ""}]
    health = examine(node(), READ, links, 0.5)
    assert passed(health.ready)
    assert health.links == [Check("b", ok=False, text="40103: no"), Check("c", ok=True, text="up")]


def test_a_node_that_is_about_to_stop_is_alive_and_not_ready() -> None:
    health = examine(node("stopping"), READ, [], 0.5)
    assert list(wrong(health.ready)) == ["node"]
    assert passed(health.live)
    assert passed(health.started)


def test_a_start_is_over_once_the_node_was_ready() -> None:
    starting = examine(node("starting", worker_0="starting"), READ, [], 0.5)
    assert wrong(starting.started) == {"started": "worker.0 is starting: block 7 of 9"}
    assert passed(starting.live), "a long start is no reason to start again"
    assert passed(examine(node("running", worker_0="starting"), READ, [], 0.5).started)


def test_a_supervisor_that_is_silent_makes_the_node_dead() -> None:
    assert wrong(examine(node(), READ, [], SUPERVISOR_SILENT_S).live)["supervisor"].startswith(
        "has been silent"
    )


def test_a_controller_that_knows_nothing_yet_is_alive_and_not_ready() -> None:
    health = examine({}, None, [], 0.0)
    assert passed(health.live)
    assert not passed(health.ready)


# -- the controller ------------------------------------------------------------------------------------------


def sampled(world: World, spool: dict[str, Any]) -> None:
    """Have the router answer what it is asked each second."""
    world.answer(world.wait(2.0), {"spool": spool, "links": []})


def test_the_controller_tells_what_router_and_supervisor_told_it() -> None:
    world = World()
    assert not passed(world.controller.health(world.now).ready)
    world.hello("router")
    world.news(router="ready", worker_0="ready")
    sampled(world, {"homes_ready": 1, "recovered": 1})
    assert wrong(world.controller.health(world.now).ready) == {}
    (told,) = replies(world.call("health"))
    assert (told["live"], told["started"], told["ready"]) == (True, True, True)
    world.news(router="ready", worker_0="hung")
    assert list(wrong(world.controller.health(world.now).ready)) == ["worker.0"]


def test_a_router_that_does_not_answer_any_more_is_noticed() -> None:
    world = World()
    world.hello("router")
    world.news(router="ready", worker_0="ready")
    sampled(world, {"homes_ready": 1, "recovered": 1})
    for _ in range(3):
        world.wait(1.0)
    assert list(wrong(world.controller.health(world.now).ready)) == ["spool"]


def test_the_router_is_asked_more_often_while_the_spool_is_read() -> None:
    world = World()
    world.hello("router")
    world.news(router="ready", worker_0="ready")
    sampled(world, {"homes_ready": 0, "recovered": 0})
    world.answer(world.wait(0.25), {"spool": {"homes_ready": 1, "recovered": 1}, "links": []})
    assert passed(world.controller.health(world.now).ready)


def test_silence_of_the_supervisor_counts_from_its_last_news() -> None:
    world = World()
    world.news(router="ready")
    world.wait(SUPERVISOR_SILENT_S - 1)
    world.news(router="ready")
    world.wait(0.1)
    world.wait(SUPERVISOR_SILENT_S - 1)
    assert passed(world.controller.health(world.now).live)
    world.wait(2)
    assert not passed(world.controller.health(world.now).live)


# -- pages ---------------------------------------------------------------------------------------------------


def ask(target: str, **states: str) -> Answer:
    path, _, query = target.partition("?")
    links = [{"name": "b", "state": "down", "error": "40103: no"}]
    return page(Request(path, frozenset(query.split("&"))), examine(node(**states), READ, links, 0.5), str)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_says_ok_and_with_verbose_what_was_looked_at(path: str) -> None:
    assert ask(path) == Answer(HTTPStatus.OK, "ok\n")
    assert ask(f"{path}?verbose").body.endswith(f"{path[1:]} check passed\n")


def test_a_failure_says_why_without_being_asked() -> None:
    answer = ask("/readyz", worker_0="hung")
    assert answer.status is HTTPStatus.SERVICE_UNAVAILABLE
    assert answer.body.splitlines() == [
        "[+]supervisor ok",
        "[+]node ok",
        "[+]router.0 ok",
        "[-]worker.0 is hung, after 3 restarts (last: block 7 of 9); 'angarium events' says more",
        "[+]worker.1 ok",
        "[+]spool ok",
        "[ ]link b: 40103: no",
        "readyz check failed",
    ]
    assert ask("/healthz", worker_0="hung").status is HTTPStatus.OK


def test_another_path_is_told_which_there_are() -> None:
    answer = ask("/")
    assert answer.status is HTTPStatus.NOT_FOUND
    assert all(path in answer.body for path in PAGES)


def test_what_a_neighbour_wrote_cannot_add_lines() -> None:
    links = [{"name": "b\nreadyz check passed", "state": "down", "error": "x\r\n\r\ny"}]
    lines = page(
        Request("/readyz", frozenset({"verbose"})), examine(node(), READ, links, 0.5), str
    ).body.splitlines()
    assert lines.count("readyz check passed") == 1


# -- HTTP ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "request_"),
    [
        (b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n", Request("/readyz")),
        (b"GET /readyz?verbose&x=1 HTTP/1.0\n\n", Request("/readyz", frozenset({"verbose", "x"}))),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", Request("/healthz", wants_body=False)),
        (b"GET / HTTP/1.1\r\n\r\nwhat is behind is not read", Request("/")),
    ],
)
def test_a_request_is_understood_however_it_is_cut(head: bytes, request_: Request) -> None:
    assert Incoming().take(head) == request_
    incoming = Incoming()
    found = [incoming.take(head[i : i + 1]) for i in range(len(head))]
    assert next(one for one in found if one is not None) == request_


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /readyz HTTP/1.1\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"GET /readyz\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\xff\x00\x01\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\x16\x03\x01 a TLS client\n\n", HTTPStatus.BAD_REQUEST),
        (b"GET /" + b"x" * HEAD_BYTES_MAX, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 2_000 + b"\r\n", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
def test_what_is_no_request_is_refused(head: bytes, status: HTTPStatus) -> None:
    answer = Incoming().take(head)
    assert isinstance(answer, Answer)
    assert answer.status is status
    assert answer.encode().startswith(b"HTTP/1.1 %d " % status.value)


@given(st.lists(st.binary(max_size=200), max_size=100))
def test_nothing_that_comes_is_an_error_or_is_kept_without_end(pieces: list[bytes]) -> None:
    incoming, size = Incoming(), 0
    for piece in pieces:
        size += len(piece)
        if incoming.take(piece) is not None:
            return
        assert size <= HEAD_BYTES_MAX


def test_an_answer_to_head_has_no_body_but_its_length() -> None:
    encoded = Answer(HTTPStatus.OK, "ok\n").encode(Request("/healthz", wants_body=False))
    assert encoded.endswith(b"\r\n\r\n")
    assert b"Content-Length: 3\r\n" in encoded


# -- configuration -------------------------------------------------------------------------------------------


def test_an_endpoint_is_on_loopback_unless_it_is_told_otherwise(tmp_path: Any) -> None:
    assert NodeConfig().health.listen == ["tcp://127.0.0.1:0"]
    file = tmp_path / "node.toml"
    file.write_text('[health]\nlisten = ["tcp://0.0.0.0:8080"]\ndrain_ms = 5000\n', encoding="utf-8")
    assert check_config(file) == []


@pytest.mark.parametrize("url", ["0.0.0.0:8080", "ipc:///run/health", "tcp://x", "tcp://x:99999"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    (fault,) = faults_of(NodeConfig(health=HealthSection(listen=[url])))
    assert fault.startswith("health.listen: ")
