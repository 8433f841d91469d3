"""The controller's state machine: the admin API, what the router is told, and what is reported."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from cluster.controller.health.metrics import CONTROLLER
from cluster.controller.operations.endpoints import HOME_TIMEOUT_S
from cluster.controller.operations.objects import PASSWORDS_MAX
from cluster.controller.report import Sampler
from cluster.controller.switchboard import effects as c
from cluster.controller.switchboard.changes import CONFIRM_TIMEOUT_S, SINGLE_CHANGES_MAX
from cluster.controller.switchboard.switchboard import GATHER_TIMEOUT_S, PENDING_MAX, ROUTER, Switchboard
from tests.unit.cluster.controller_world import ASKER, World, replies, requests
from tests.unit.declared_metrics import differences


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def served(world: World) -> World:
    """A world whose router is there and configured."""
    world.answer(world.hello("router"), None)
    return world


# -- telling the router --------------------------------------------------------------------------------------


def test_a_new_router_is_told_everything_once(world: World) -> None:
    seen = world.hello("router")
    assert requests(seen) == [("config_snapshot", world.catalog.snapshot())]
    world.answer(seen, None)
    assert world.hello("router") == []
    assert requests(world.hello("router", incarnation=8)) == [("config_snapshot", world.catalog.snapshot())]


def test_a_hello_of_an_earlier_router_is_dropped(served: World) -> None:
    assert served.hello("router", incarnation=6) == []


def test_a_router_that_did_not_take_its_configuration_is_told_again(world: World) -> None:
    world.hello("router")
    world.wait(CONFIRM_TIMEOUT_S)
    assert requests(world.hello("router"))[0][0] == "config_snapshot"


def test_a_router_that_cannot_be_reached_is_told_at_its_next_hello(world: World) -> None:
    (request,) = [effect for effect in world.hello("router") if isinstance(effect, c.Request)]
    world.do(world.controller.unanswered(request.number))
    assert requests(world.hello("router"))[0][0] == "config_snapshot"


def test_workers_are_told_nothing(world: World) -> None:
    assert world.hello("worker") == []


def test_a_router_that_refuses_its_configuration_is_an_event(world: World) -> None:
    (request,) = [effect for effect in world.hello("router") if isinstance(effect, c.Request)]
    seen = world.do(world.controller.refused(request.number, errors.INTERNAL, "no"))
    assert [effect.event["severity"] for effect in seen if isinstance(effect, c.Record)] == ["error"]


# -- objects -------------------------------------------------------------------------------------------------


def test_a_change_is_durable_before_the_router_hears_of_it_and_known_there_before_the_answer(
    served: World,
) -> None:
    seen = served.call("objects.create", kind="profile", name="fast", attributes={"eliding": "true"})
    assert [type(effect) for effect in seen] == [c.Commit, c.Request, c.Record]
    (operation, content) = requests(seen)[0]
    assert operation == "config_set"
    assert content[:3] == ["profile", "default", "fast"]
    assert content[3]["eliding"] is True
    assert content[3]["eliding_max_topics"] == 256
    (answer,) = replies(served.answer(seen, None))
    assert answer["name"] == "fast"
    assert answer["eliding"] is True


def test_a_change_without_a_router_is_answered_at_once(world: World) -> None:
    assert world.ask("objects.create", kind="acl", name="readers")["name"] == "readers"


def test_a_change_that_the_router_does_not_confirm_is_answered_after_a_bound(served: World) -> None:
    assert replies(served.call("objects.create", kind="acl", name="readers")) == []
    assert replies(served.wait(CONFIRM_TIMEOUT_S))[0]["name"] == "readers"


def test_a_change_that_the_store_refuses_changes_nothing(served: World) -> None:
    served.store_refuses = True
    with pytest.raises(errors.AngariumError, match="full"):
        served.ask("objects.create", kind="acl", name="readers")
    assert served.ask("objects.list", kind="acl", name="readers") == []


def test_an_update_without_a_change_asks_nobody(served: World) -> None:
    assert served.ask("objects.update", kind="vpn", name="default", attributes={"enabled": "true"})["enabled"]


def test_a_deletion_tells_the_router_who_is_gone(served: World) -> None:
    served.answer(served.call("objects.create", kind="vpn", name="orders"), *[None] * 5)
    seen = served.call("objects.delete", kind="vpn", name="orders")
    assert requests(seen)[-1] == ("config_delete", ["vpn", "", "orders"])
    assert replies(served.answer(seen, *[None] * 5)) == [None]


def test_every_change_is_an_event(served: World) -> None:
    seen = served.call("objects.create", kind="username", name="alice", attributes={"password": "secret"})
    closed, event = [effect.event for effect in seen if isinstance(effect, c.Record)]
    assert event["event"] == "SYSTEM_CONFIG_CHANGE"
    assert "'alice'" in event["text"]
    assert (closed["event"], closed["severity"]) == ("SYSTEM_CLIENT_USERNAME_DISABLED", "warning")
    assert "'default'" in closed["text"]
    assert "secret" not in str((closed, event))


def test_secrets_never_come_back(world: World) -> None:
    world.ask("objects.create", kind="username", name="alice", attributes={"password": "secret"})
    assert "password" not in world.ask("objects.show", kind="username", name="alice")
    assert world.ask("objects.show", kind="username", name="alice")["password_set"] is True


@pytest.mark.parametrize(
    ("operation", "arguments", "code"),
    [
        ("objects.show", {"kind": "acl", "name": "gone"}, errors.OBJECT_NOT_FOUND),
        ("objects.show", {"kind": "ackl", "name": "x"}, errors.INVALID_ARGUMENT),
        ("objects.show", {"kind": "acl"}, errors.INVALID_ARGUMENT),
        ("objects.show", {"kind": "acl", "name": 7}, errors.INVALID_ARGUMENT),
        ("objects.show", {"kind": "acl", "name": "x", "nam": "y"}, errors.INVALID_ARGUMENT),
        ("objects.create", {"kind": "acl", "name": "default"}, errors.OBJECT_EXISTS),
        ("objects.create", {"kind": "acl", "name": "a", "attributes": {"x": 1}}, errors.INVALID_ATTRIBUTE),
        ("objects.create", {"kind": "vpn", "name": "a*"}, errors.INVALID_ARGUMENT),
        ("objects.delete", {"kind": "vpn", "name": "default"}, errors.OBJECT_IN_USE),
        ("objects.rename", {}, errors.UNKNOWN_OPERATION),
        ("gateways.show", {"name": "mqtt.0"}, errors.OBJECT_NOT_FOUND),
        ("events", {"since": "x"}, errors.INVALID_ARGUMENT),
        ("events", {"limit": 0}, errors.INVALID_ARGUMENT),
        ("log_level", {"level": "LOUD"}, errors.INVALID_ARGUMENT),
        ("config.apply", {"objects": [["vpn", "x"]]}, errors.INVALID_ARGUMENT),
    ],
)
def test_a_wrong_request_is_refused_with_its_code(
    world: World, operation: str, arguments: dict[str, Any], code: int
) -> None:
    with pytest.raises(errors.AngariumError) as caught:
        world.ask(operation, **arguments)
    assert caught.value.code == code


DECLARED = [["vpn", "", "orders", {}], ["acl", "orders", "readers", {"client_connect_default": "allow"}]]


def test_a_dry_run_tells_and_changes_nothing(served: World) -> None:
    report = served.ask("config.apply", objects=DECLARED, dry_run=True)
    assert [row["action"] for row in report] == ["create", "create"]
    assert served.ask("objects.list", kind="vpn", name="orders") == []


def test_applying_pushes_every_change(served: World) -> None:
    seen = served.call("config.apply", objects=DECLARED)
    assert len([effect for effect in seen if isinstance(effect, c.Commit)]) == 1
    assert [content[:3] for _, content in requests(seen)] == [
        ["vpn", "", "orders"],
        ["profile", "orders", "default"],
        ["acl", "orders", "default"],
        ["queue", "orders", "#DEAD_MSG_QUEUE"],
        ["queue", "orders", "#retained"],
        ["acl", "orders", "readers"],
    ]


def test_many_changes_are_pushed_as_a_whole(served: World) -> None:
    many = [["acl", "default", f"a{number}", {}] for number in range(SINGLE_CHANGES_MAX + 1)]
    seen = served.call("config.apply", objects=many)
    assert [operation for operation, _ in requests(seen)] == ["config_snapshot"]
    (event,) = [effect.event for effect in seen if isinstance(effect, c.Record)]
    assert event["text"].startswith(f"{SINGLE_CHANGES_MAX + 1} objects, acl 'a0'")
    assert len(requests(seen)[0][1]) == len(served.catalog)


def test_an_export_can_be_applied(world: World) -> None:
    exported = world.ask("config.export")
    assert {row["action"] for row in world.ask("config.apply", objects=exported)} == {"unchanged"}


# -- asking the router ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "arguments", "asked"),
    [
        ("clients.list", {}, ("clients", {"vpn": None})),
        ("clients.show", {"name": "a"}, ("client", {"name": "a", "vpn": "default"})),
        ("clients.disconnect", {"name": "a", "vpn": "v"}, ("disconnect", {"name": "a", "vpn": "v"})),
        ("subscriptions.list", {"client": "a"}, ("subscriptions", {"client": "a", "vpn": None})),
    ],
)
def test_what_the_router_knows_is_asked_of_it(
    served: World, operation: str, arguments: dict[str, Any], asked: tuple[str, Any]
) -> None:
    seen = served.call(operation, **arguments)
    assert requests(seen) == [asked]
    assert replies(served.answer(seen, ["it"])) == [["it"]]


def test_a_refusal_of_the_router_keeps_its_code(served: World) -> None:
    seen = served.call("clients.disconnect", name="gone")
    (request,) = [effect for effect in seen if isinstance(effect, c.Request)]
    seen = served.do(served.controller.refused(request.number, errors.UNKNOWN_CLIENT_NAME, "gone"))
    assert replies(seen) == [[errors.UNKNOWN_CLIENT_NAME, "gone"]]


def test_a_router_that_does_not_answer_in_time_is_told(served: World) -> None:
    served.call("clients.list")
    ((code, _),) = replies(served.wait(GATHER_TIMEOUT_S))
    assert code == errors.TIMEOUT


def test_a_late_answer_is_dropped(served: World) -> None:
    seen = served.call("clients.list")
    served.wait(GATHER_TIMEOUT_S)
    assert served.answer(seen, []) == []


@pytest.mark.parametrize("state", ["restarting", "hung"])
def test_a_router_that_is_known_to_be_down_is_not_waited_for(served: World, state: str) -> None:
    served.news(router=state)
    ((code, _),) = replies(served.call("clients.list"))
    assert code == errors.TIMEOUT


def test_a_worker_that_is_ready_but_has_not_said_hello_yet_is_asked_as_soon_as_it_has(served: World) -> None:
    """The supervisor may be sooner with its word than the worker: a question in between is answered all the same."""
    served.news(router="ready", worker="ready")
    assert requests(served.call("spool.aside")) == []
    seen = served.hello("worker")
    assert [operation for operation, _ in requests(seen)] == ["spool.aside"]
    assert replies(served.answer(seen, [])) == [[]]


def test_a_worker_that_never_says_hello_is_not_asked_what_nobody_waits_for_any_more(served: World) -> None:
    served.news(router="ready", worker="ready")
    served.call("spool.aside")
    ((code, _),) = replies(served.wait(HOME_TIMEOUT_S))
    assert code == errors.HOME_NOT_READY
    assert requests(served.hello("worker")) == []


def test_too_many_unanswered_requests_are_refused(served: World) -> None:
    for _ in range(PENDING_MAX):
        served.controller.admin(ASKER, 1, "clients.list", {}, served.now)
    with pytest.raises(errors.RateLimitError):
        served.ask("clients.list")


# -- reports -------------------------------------------------------------------------------------------------

STATS = {
    "sessions": 2,
    "subscriptions": 3,
    "messages_in": 10,
    "discards": {"no-local": 1},
    "errors": {"40302": 4},
}


def test_a_status_puts_everything_together(served: World) -> None:
    served.news(router="ready", worker="restarting")
    served.controller.measured({1: {"rss_bytes": 5, "cpu_percent": 1.5, "uptime_s": 2.0}})
    (status,) = replies(served.answer(served.call("status"), STATS))
    assert (status["node"], status["url"], status["sessions"], status["subscriptions"]) == ("n", "u", 2, 3)
    assert status["discards"] == {"no-local": 1}
    assert status["errors"] == {"40302": 4}
    router, worker = status["processes"]
    assert (router["role"], router["state"], router["rss_bytes"]) == ("router", "ready", 5)
    assert (worker["state"], worker["rss_bytes"]) == ("restarting", None)
    for key in ("uptime_s", "compiled", "rates", "spool", "links"):
        assert key in status


def test_a_status_has_the_dead_messages_that_workers_deleted(served: World) -> None:
    """They are lost to their consumers, and the router knows nothing of them."""
    for index in range(2):
        served.hello("worker", index)
    seen = served.wait(1.0)
    told = {"ttl_expired_discard": 4, "max_redelivery_exceeded_discard": 0, "rejected_discard": 1}
    for one in [one for one in seen if isinstance(one, c.Request) and one.operation == "metrics"]:
        served.do(served.controller.answered(one.number, told))
    (status,) = replies(served.answer(served.call("status"), STATS))
    assert status["discards"] == {"no-local": 1, "ttl-expired": 8, "rejected": 2}


def test_a_status_without_a_router_still_comes(world: World) -> None:
    world.news(router="restarting")
    status = world.ask("status")
    assert status["sessions"] == 0
    assert status["processes"][0]["state"] == "restarting"


def test_a_paused_router_makes_a_status_late_by_a_bound_only(served: World) -> None:
    assert replies(served.call("status")) == []
    assert replies(served.wait(GATHER_TIMEOUT_S))[0]["sessions"] == 0


def test_workers_are_listed_with_their_counters(served: World) -> None:
    served.hello("worker")
    served.news(router="ready", worker="ready")
    (rows,) = replies(served.answer(served.call("workers"), {"filters": 9}))
    assert rows[0]["filters"] == 9
    assert rows[0]["state"] == "ready"


def test_gateways_are_listed_with_their_metrics_and_without_if_they_are_not_there(served: World) -> None:
    served.hello("mqtt")
    served.news(router="ready", mqtt="ready", mqtt_1="restarting")
    (rows,) = replies(served.answer(served.call("gateways.list"), {"clients": 3}))
    assert [(row["name"], row["state"], row.get("clients")) for row in rows] == [
        ("mqtt.0", "ready", 3),
        ("mqtt.1", "restarting", None),
    ]
    (shown,) = replies(served.answer(served.call("gateways.show", name="mqtt.0"), {"clients": 4}))
    assert (shown["name"], shown["index"], shown["clients"]) == ("mqtt.0", 0, 4)


def test_raw_counters_come_from_every_process(served: World) -> None:
    served.hello("worker")
    (found,) = replies(served.answer(served.call("stats"), {"r": 1}, {"w": 2}))
    assert found["router"] == {"r": 1}
    assert found["workers"] == [{"w": 2}]
    assert differences(CONTROLLER, found["controller"]) == []


def test_the_routers_totals_are_sampled_each_second(served: World) -> None:
    served.answer(served.wait(1), {"messages_in": 1000})
    served.answer(served.wait(1), {"messages_in": 1500})
    served.news(router="ready")
    (status,) = replies(served.answer(served.call("status"), STATS))
    assert status["rates"]["messages_in_per_s"] == 500.0


def test_rates_begin_anew_with_a_new_router_and_end_without_one() -> None:
    sampler = Sampler()
    sampler.sample(1.0, 7, {"messages_in": 1000})
    sampler.sample(2.0, 7, {"messages_in": 3000})
    assert sampler.rates["messages_in_per_s"] == 2000.0
    sampler.sample(3.0, 8, {"messages_in": 10})
    assert sampler.rates["messages_in_per_s"] == 0.0
    sampler.forget()
    assert sampler.rates == {}


def test_events_of_processes_are_recorded_and_found(world: World) -> None:
    world.do(world.controller.event({"severity": "info", "scope": "CLIENT", "event": "E", "text": "t"}))
    (found,) = world.ask("events")
    assert (found["id"], found["event"], found["time"]) == (1, "E", "2031-05-04T10:00:00.000Z")
    assert isinstance(world.effects[0], c.Record)
    assert world.ask("events", since=found["id"]) == []


def test_events_of_the_supervisor_are_taken_once(world: World) -> None:
    news = {"node": "n", "processes": [], "events": [[1, {"text": "a"}], [2, {"text": "b"}]]}
    world.do(world.controller.node_news(news, world.now))
    news["events"] = [[2, {"text": "b"}], [3, {"text": "c"}]]
    world.do(world.controller.node_news(news, world.now))
    assert [event["text"] for event in world.ask("events")] == ["a", "b", "c"]
    assert world.controller.supervisor_events == 3


def test_a_log_level_goes_to_the_chosen_processes(served: World) -> None:
    served.hello("worker")
    seen = served.call("log_level", level="DEBUG", role="worker")
    assert requests(seen) == [("log_level", "DEBUG")]
    assert replies(served.answer(seen, None)) == [["worker.0"]]
    seen = served.call("log_level", level="DEBUG")
    assert c.SetLogLevel("DEBUG") in seen
    assert replies(served.answer(seen, None, None)) == [["controller.0", "router.0", "worker.0"]]


def test_a_stop_is_answered_before_it_begins(world: World) -> None:
    seen = world.call("down")
    assert [type(effect) for effect in seen] == [c.Reply, c.StopNode]


def test_the_certificates_of_operators_and_of_clients_are_read_again(served: World) -> None:
    seen = served.call("keys.reload")
    (reload,) = (effect for effect in seen if isinstance(effect, c.ReloadCertificate))
    ending = ["router.tls_cert_file: the certificate node.pem ended"]
    seen = served.do(served.controller.reloaded(reload.number, "", ending, served.now))
    assert requests(seen) == [("tls_reload", None)]
    assert replies(served.answer(seen, None)) == [ending], "who renewed the wrong one hears of it"


def test_gateways_read_their_certificates_again_with_the_router(served: World) -> None:
    """One that cannot use what is there now refuses it for all, so that the operator hears of it."""
    served.hello("mqtt", 0)
    served.hello("mqtt", 1)
    (reload,) = (one for one in served.call("keys.reload") if isinstance(one, c.ReloadCertificate))
    seen = served.do(served.controller.reloaded(reload.number, "", [], served.now))
    assert requests(seen) == [("tls_reload", None)] * 3
    asked = [one for one in seen if isinstance(one, c.Request)]
    for one in asked[:2]:
        served.do(served.controller.answered(one.number, None))
    refusal = (errors.INVALID_CONFIGURATION, "node.pem: it holds no certificate")
    seen = served.do(served.controller.refused(asked[2].number, *refusal))
    (reply,) = (effect for effect in seen if isinstance(effect, c.Reply))
    assert (reply.ok, tuple(reply.value[:2])) == (False, refusal)


def test_a_damaged_certificate_of_operators_is_told_and_the_other_one_is_read(served: World) -> None:
    (reload,) = (one for one in served.call("keys.reload") if isinstance(one, c.ReloadCertificate))
    seen = served.do(
        served.controller.reloaded(reload.number, "node.pem: it holds no certificate", [], served.now)
    )
    (event,) = (effect.event for effect in seen if isinstance(effect, c.Record))
    assert event["event"] == "SYSTEM_CERTIFICATE_NOT_RELOADED"
    (reply,) = (effect for effect in seen if isinstance(effect, c.Reply))
    assert (reply.ok, reply.value[0]) == (False, errors.INVALID_CONFIGURATION)
    assert requests(seen) == [("tls_reload", None)], "that of clients may be sound"


def test_a_router_without_a_certificate_does_not_keep_others_from_reading_theirs(served: World) -> None:
    served.hello("management", 0)
    served.controller._shown_config = {
        "router": {"tls_cert_file": ""},
        "management": {"tls_cert_file": "node.pem"},
    }
    (reload,) = (one for one in served.call("keys.reload") if isinstance(one, c.ReloadCertificate))
    seen = served.do(served.controller.reloaded(reload.number, "", [], served.now))
    assert requests(seen) == [("tls_reload", None)]
    assert replies(served.answer(seen, None)) == [[]]


def test_the_configuration_in_force_is_shown(world: World) -> None:
    assert world.ask("config.show") == {"node": {"name": "n"}}


def test_the_router_is_the_only_one_with_index_zero_that_is_configured(world: World) -> None:
    world.hello("router", 1)
    assert world.effects == []
    assert ROUTER == ("router", 0)


def test_so_many_passwords_at_once_are_refused_and_their_hashes_are_not(world: World) -> None:
    """The supervisor would take the controller for hung while it makes hashes of them."""

    def declared(password: str) -> list[list[Any]]:
        return [
            ["username", "default", f"u{number}", {"password": password}]
            for number in range(PASSWORDS_MAX + 1)
        ]

    for dry_run in (True, False):
        with pytest.raises(errors.InvalidRequestError) as refused:
            world.ask("config.apply", objects=declared("secret"), dry_run=dry_run)
        assert refused.value.code == errors.INVALID_ARGUMENT
    world.ask("config.apply", objects=declared("secret")[1:], dry_run=True)
    world.ask("config.apply", objects=declared(f"scrypt$16384$8$1$00${'00' * 32}"), dry_run=True)


def test_what_follows_from_very_many_objects_is_no_single_step_either(
    served: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What became of them is written down, and the router is told, in other steps than they are judged in."""
    marks: list[str] = []

    def marking(name: str, mark: str) -> None:
        method = getattr(Switchboard, name)

        def marked(*given: Any) -> Any:
            marks.append(mark)
            return method(*given)

        monkeypatch.setattr(Switchboard, name, marked)

    marking("write_down", "written")
    marking("ask", "told")
    served.catalog.on_step = lambda: marks.append("step")
    objects = [["username", "default", f"user{number}", {}] for number in range(200)]
    served.call("config.apply", objects=objects)
    assert marks[:200] == ["step"] * 200
    assert marks[200:] == ["step", "written", "step", "told", "step"]
