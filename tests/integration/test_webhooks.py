"""Webhooks at a running node: what is posted, tried again, given up, and what a target that hangs delays."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import shlex
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from angarium import blocking, errors
from angarium_server.testing import Node
from cluster.admin.client import Admin
from tests.acceptance.document import FENCE
from tests.acceptance.installation import ROOT
from tests.integration.webhook_sink import HANG, Attempt, Sink
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R254")]

CONFIG = """
[http]
webhook_networks = ["127.0.0.0/8"]

# Who has no password is let in although somebody has one.
[vpn.default.username.default]
enabled = true

[vpn.default.username.anna]
password_file = "anna.password"
"""
FAST = ("retry_delay_initial_ms=20", "retry_delay_max_ms=100", "timeout_ms=500")


def busy(n: int, _came: Attempt) -> int:
    return 500 if n == 0 else 200


def picky(_n: int, came: Attempt) -> int:
    return 410 if came.body == b"bad" else 204


def slow(n: int, _came: Attempt) -> web.Response | int:
    return web.Response(status=503, headers={"Retry-After": "1"}) if n == 0 else 200


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    with Sink(
        ok=lambda _n, _came: 204,
        busy=busy,
        picky=picky,
        hang=lambda _n, _came: HANG,
        wait=lambda _n, _came: 0.05,
        never=lambda _n, _came: 500,
        moved=lambda _n, _came: web.Response(status=307, headers={"Location": "/ok"}),
        slow=slow,
    ) as made:
        yield made


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("webhooks")
    file = folder / "node.toml"
    file.write_text(CONFIG)
    (folder / "anna.password").write_text("right")
    (folder / "anna.password").chmod(0o600)
    with Node(folder / "data", workers=1, config=file) as running:
        yield running


def make(node: Node, name: str, url: str, *settings: str, queue: str = "") -> None:
    """Make a queue and its webhook."""
    queue = queue or f"q/{name}"
    node.run("queue", "create", queue, "--set", "owner=default", "--set", f"subscriptions={queue}")
    given = dict(one.split("=", 1) for one in (f"queue={queue}", f"url={url}", *FAST, *settings))
    node.run("webhook", "create", name, *(w for one in given.items() for w in ("--set", "=".join(one))))


def publish(node: Node, topic: str, *bodies: bytes) -> None:
    with blocking.connect(node.url) as client, client.producer() as producer:
        for body in bodies:
            producer.publish(topic, body, content_type="text/plain")
        producer.flush()


def show(node: Node, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.run("webhook", "show", name, "--json"))
    return found


def is_empty(node: Node, queue: str) -> bool:
    found = json.loads(node.run("queue", "show", queue, "--json"))
    return bool(found["messages_spooled"] == 0)


def test_each_message_is_posted_with_what_it_says_and_a_signature(
    node: Node, sink: Sink, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    token = tmp_path / "token"
    token.write_text("Bearer abc\n")
    more = (f"secret_file={secret}", f"authorization_file={token}", "headers=X-Team: red")
    make(node, "ok", sink.url("ok"), *more)
    publish(node, "q/ok", b"one", b"two")
    wait_until(lambda: sorted(sink.bodies("ok")) == [b"one", b"two"], "both are posted")
    came = sink.got["ok"][0]
    told = f"{came.message_id}.{came.headers['webhook-timestamp']}.".encode() + came.body
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = base64.b64encode(hmac.digest(key, told, hashlib.sha256)).decode()
    assert came.headers["webhook-signature"] == f"v1,{signature}"
    assert came.headers["authorization"] == "Bearer abc"
    assert (came.headers["x-team"], came.headers["content-type"]) == ("red", "text/plain")
    assert came.headers["angarium-topic"] == "q/ok"
    assert len({one.message_id for one in sink.got["ok"]}) == 2
    wait_until(lambda: is_empty(node, "q/ok"), "the queue is empty")
    assert (show(node, "ok")["state"], show(node, "ok")["accepted"]) == ("up", 2)
    assert "MfKQ" not in node.run("webhook", "show", "ok", "--json") + node.run("config", "export")


def test_a_failure_is_tried_again_with_the_same_id(node: Node, sink: Sink) -> None:
    make(node, "busy", sink.url("busy"))
    publish(node, "q/busy", b"one")
    wait_until(lambda: is_empty(node, "q/busy"), "the queue is empty")
    assert [one.code for one in sink.got["busy"]] == [500, 200]
    assert len({one.message_id for one in sink.got["busy"]}) == 1
    told = show(node, "busy")
    assert (told["state"], told["failed"], told["last_failure"]) == ("up", 1, "answered 500")


def test_retry_after_is_waited_for(node: Node, sink: Sink) -> None:
    make(node, "slow", sink.url("slow"), "retry_delay_max_ms=60000")
    publish(node, "q/slow", b"one")
    wait_until(lambda: bool(sink.got["slow"]), "it is posted")
    wait_until(lambda: show(node, "slow")["waiting"] == 1, "it waits")
    wait_until(lambda: is_empty(node, "q/slow"), "the queue is empty")
    first, second = (int(one.headers["webhook-timestamp"]) for one in sink.got["slow"])
    assert second > first


def test_gone_and_too_many_attempts_reject_to_the_dead_message_queue(node: Node, sink: Sink) -> None:
    node.run("queue", "create", "dead", "--set", "owner=default")
    for name, settings in (("picky", ()), ("never", ("max_attempts=3",))):
        make(node, name, sink.url(name), *settings)
        node.run("queue", "update", f"q/{name}", "--set", "dead_message_queue=dead")
    publish(node, "q/picky", b"bad", b"good")
    publish(node, "q/never", b"lost")
    wait_until(lambda: is_empty(node, "q/picky") and is_empty(node, "q/never"), "both queues are empty")
    assert sink.accepted("picky") == {b"good"}
    assert sink.bodies("never") == [b"lost"] * 3
    with blocking.connect(node.url) as client, client.consume("dead") as flow:
        assert {flow.receive(10).payload for _ in range(2)} == {b"bad", b"lost"}


def test_a_target_that_hangs_delays_no_other_webhook(node: Node, sink: Sink) -> None:
    make(node, "hang", sink.url("hang"), "timeout_ms=60000", "window=3")
    publish(node, "q/hang", *(b"%d" % n for n in range(10)))
    wait_until(lambda: len(sink.got["hang"]) == 3, "its window is full")
    make(node, "beside", sink.url("ok"))
    publish(node, "q/beside", b"beside")
    wait_until(lambda: b"beside" in sink.bodies("ok"), "the other one is posted")
    assert (show(node, "hang")["under_way"], sink.most["hang"]) == (3, 3)
    node.run("webhook", "delete", "hang")


def test_no_more_than_the_window_is_posted_at_once_and_one_keeps_the_order(node: Node, sink: Sink) -> None:
    make(node, "wait", sink.url("wait"), "window=1")
    bodies = [b"%d" % n for n in range(20)]
    publish(node, "q/wait", *bodies)
    wait_until(lambda: is_empty(node, "q/wait"), "the queue is empty")
    assert (sink.bodies("wait"), sink.most["wait"]) == (bodies, 1)


def test_one_whose_turn_it_is_not_stands_by_until_it_is(node: Node, sink: Sink) -> None:
    make(node, "turn", sink.url("ok"))
    given = ("queue=q/turn", f"url={sink.url('ok')}", *FAST)
    node.run("webhook", "create", "next", *(word for one in given for word in ("--set", one)))
    wait_until(lambda: show(node, "next")["state"] == "standby", "the second one stands by")
    assert (show(node, "turn")["state"], show(node, "next")["error"]) == ("up", "")
    node.run("webhook", "update", "turn", "--set", "enabled=false")
    wait_until(lambda: show(node, "next")["state"] == "up", "it has its turn")
    publish(node, "q/turn", b"hello")
    wait_until(lambda: show(node, "next")["accepted"] == 1)
    node.run("webhook", "delete", "next", "--yes")


def test_a_redirect_is_a_failure_and_a_webhook_that_is_disabled_posts_nothing(node: Node, sink: Sink) -> None:
    make(node, "moved", sink.url("moved"))
    publish(node, "q/moved", b"moved")
    wait_until(lambda: len(sink.got["moved"]) > 1, "it is tried again")
    assert b"moved" not in sink.bodies("ok")
    assert (show(node, "moved")["state"], show(node, "moved")["error"]) == ("down", "answered 307")
    node.run("webhook", "update", "moved", "--set", "enabled=false")
    wait_until(lambda: show(node, "moved")["state"] == "disabled", "it is disabled")
    node.run("webhook", "update", "moved", "--set", "enabled=true", "--set", f"url={sink.url('ok')}")
    wait_until(lambda: b"moved" in sink.bodies("ok"), "it is posted elsewhere")
    wait_until(lambda: is_empty(node, "q/moved"), "the queue is empty")


def test_it_has_the_rights_of_its_username_without_its_password(node: Node, sink: Sink) -> None:
    make(node, "rights", sink.url("ok"), "username=anna")
    wait_until(lambda: "40315" in show(node, "rights")["error"], "anna may not consume")
    node.run("queue", "update", "q/rights", "--set", "permission=consume")
    publish(node, "q/rights", b"rights")
    wait_until(lambda: b"rights" in sink.bodies("ok"), "it is posted")
    assert "#webhook/rights" in node.run("client", "list")


def test_what_is_not_allowed_is_not_reached(tmp_path: Path, sink: Sink) -> None:
    """A node that allows it no more refuses such a URL, and does not post to one that it has."""
    file = tmp_path / "node.toml"
    file.write_text('[http]\nwebhook_networks = ["127.0.0.0/8"]\n')
    with Node(tmp_path / "data", workers=1, config=file) as closed:
        make(closed, "inside", sink.url("ok"))
        file.write_text("")
        closed.restart()
        publish(closed, "q/inside", b"inside")
        wait_until(lambda: "not public" in show(closed, "inside")["error"], "it is refused")
        closed.run("webhook", "update", "inside", "--set", "window=2")
        wish: dict[str, Any] = {
            "kind": "webhook",
            "vpn": "default",
            "name": "inside",
            "attributes": {"url": sink.url("else")},
        }
        with Admin(closed.data) as admin, pytest.raises(errors.InvalidRequestError, match="not public"):
            admin.call("objects.update", **wish)
    assert b"inside" not in sink.bodies("ok")


def test_what_all_together_hold_is_bounded_and_what_is_too_much_comes_later(
    tmp_path: Path, sink: Sink
) -> None:
    """One of these messages fits what all may hold, and none of them a share; three queues have them."""
    file = tmp_path / "node.toml"
    file.write_text('[http]\nwebhook_networks = ["127.0.0.0/8"]\nwebhook_memory_bytes = 1_048_576\n')
    large = b" " * 700_000
    with Node(tmp_path / "data", workers=1, config=file) as node, Admin(node.data) as admin:
        with blocking.connect(node.url) as client, client.producer() as producer:
            for name in "abc":
                client.create_queue(f"large/{name}", subscriptions=[f"large/{name}"])
                for number in range(3):
                    producer.publish(f"large/{name}", b"%s%d" % (name.encode(), number) + large)
            producer.flush()
        for name in "abc":
            given = {"queue": f"large/{name}", "url": sink.url("wait"), "window": 3}
            admin.call("objects.create", kind="webhook", name=name, attributes=given)
        held = []

        def all_came() -> bool:
            held.append(sum(one["held_bytes"] for one in admin.call("webhooks.list")))
            return len({body[:2] for body in sink.bodies("wait") if len(body) > len(large)}) == 9

        wait_until(all_came, "all are posted")
        assert 0 < max(held) <= 1_048_576


def test_the_examples_of_the_page_print_what_it_says(node: Node, sink: Sink) -> None:
    text = (
        (ROOT / "docs" / "webhooks.md")
        .read_text()
        .replace("https://billing.example.com/orders", sink.url("ok"))
    )
    (commands,) = [body for kind, _, body in FENCE.findall(text) if kind == "console"]
    (told,) = [body for kind, _, body in FENCE.findall(text) if kind == "text"]
    *lines, last = [shlex.split(line[2:])[1:] for line in commands.splitlines()]
    for line in lines:
        node.run(*line)
    wait_until(lambda: show(node, "to-billing")["accepted"] == 1, "it is posted")
    pattern = r"\s+".join(re.escape(word) for word in told.split()[:-1])
    assert re.search(f"^{pattern}\\s", node.run(*last), re.MULTILINE)


def test_operators_are_told_and_the_metrics_say_the_same(node: Node, sink: Sink) -> None:
    make(node, "told", sink.url("never"))
    publish(node, "q/told", b"told")
    wait_until(
        lambda: "webhook 'told' does not get through: answered 500" in node.run("events"), "it is told"
    )
    with Admin(node.data) as admin:
        seen = admin.call("events", limit=1000)
    mine = [one for one in seen if one.get("webhook") == "told"]
    assert {(one["event"], one["vpn"]) for one in mine} == {
        ("VPN_WEBHOOK_UP", "default"),
        ("VPN_WEBHOOK_DOWN", "default"),
    }
    health = json.loads((node.data / "node.json").read_text())["health"]
    page = urllib.request.urlopen(f"{health}/metrics", timeout=10).read().decode()
    found = dict(
        re.findall(r'^angarium_webhook_(\w+)\{.*webhook="default/told".*\} (\S+)$', page, re.MULTILINE)
    )
    assert float(found["up"]) == 0
    assert float(found["failed_total"]) >= 1
