"""The audit log: what is written of what operators do, what never is, and how much at most."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors
from cluster import objects
from cluster.admin.operations import CHANGES, OPERATIONS
from cluster.controller.access import audit_log as module
from cluster.controller.access.audit_log import (
    DISTINCT_MAX,
    LOGIN,
    RELIEVING,
    AuditLog,
    Changed,
    Deed,
)
from cluster.controller.access.callers import LOCAL, Claim, Who
from cluster.controller.switchboard import effects as c
from tests.share import short
from tests.unit.cluster.controller_world import ASKER, OWNER, World

ANNA = Claim("management", "anna", "10.0.0.7")
WHO = Who("anna", "operator", "", "management", "10.0.0.7")
TIME = "2031-05-04T10:00:00.000Z"
#: Operations that read; each operation reads or changes something.
READS = {
    *(
        "status",
        "workers",
        "workers.balance.show",
        "stats",
        "health",
        "events",
        "events.follow",
        "audit",
        "gateways.list",
        "gateways.show",
    ),
    *("objects.list", "objects.show", "config.show", "config.export", "endpoints.list", "endpoints.show"),
    "endpoints.publishers",
    *("messages.list", "messages.show", "jobs.show", "clients.list", "clients.show", "subscriptions.list"),
    *("subscriptions.remote", "flows.list", "producers.list", "stages.list", "sinks.list", "bridges.list"),
    *("bridges.show", "links.list", "links.show", "cluster.status", "cluster.token.list", "spool.show"),
    *("spool.fetch", "spool.aside", "spool.aside.read", "operators.me", "operators.credentials"),
    *("operators.find", "operators.keys", "operators.logged_in", "webhooks.list", "webhooks.show"),
    *("standby.status", "access.check"),
}


@pytest.fixture
def world() -> World:
    world = World()
    world.ask("objects.create", kind="operator", name="anna", attributes={"role": "operator"})
    world.written.clear()
    return world


def entries(world: World) -> list[dict[str, Any]]:
    return [json.loads(line) for line in world.written]


def refused(world: World, claim: Claim, operation: str, /, **arguments: Any) -> int:
    with pytest.raises(errors.AngariumError) as caught:
        world.ask_as(claim, operation, **arguments)
    return caught.value.code


def test_each_operation_reads_or_changes() -> None:
    assert OPERATIONS.keys() == READS | CHANGES
    assert not READS & CHANGES
    assert RELIEVING <= CHANGES


@pytest.mark.requirement("R259")
def test_a_change_is_written_with_what_was_before_and_after(world: World) -> None:
    where = {"kind": "queue", "vpn": "default", "name": "q"}
    world.ask_as(ANNA, "objects.create", **where, attributes={"max_ttl_s": 5})
    world.ask_as(ANNA, "objects.update", **where, attributes={"max_ttl_s": 60, "respect_ttl": False})
    world.ask_as(ANNA, "objects.delete", **where)
    made, changed, deleted = entries(world)
    head = {"who": "anna", "role": "operator", "door": "management", "address": "10.0.0.7", "outcome": "done"}
    for number, (entry, verb) in enumerate(((made, "create"), (changed, "update"), (deleted, "delete"))):
        assert head.items() <= entry.items()
        assert (entry["operation"], entry["number"]) == (f"objects.{verb}", made["number"] + number)
        assert where.items() <= entry["asked"].items()
    assert made["changes"] == [{**where, "before": None, "after": {"max_ttl_s": 5, "owner": "default"}}]
    before = {"max_ttl_s": 5, "respect_ttl": True}
    assert changed["changes"] == [
        {**where, "before": before, "after": {"max_ttl_s": 60, "respect_ttl": False}}
    ]
    assert deleted["changes"][0]["after"] is None
    assert deleted["changes"][0]["before"]["max_ttl_s"] == 60


def test_it_is_written_when_it_is_durable_and_before_the_answer() -> None:
    world = World()
    order: list[str] = []

    def carry_out(effects: list[c.Effect]) -> None:
        for effect in effects:
            order.append(type(effect).__name__)
            if isinstance(effect, c.Commit):
                carry_out(world.controller.committed(effect.number, world.now))

    for number, (operation, arguments) in enumerate(
        (
            ("objects.create", {"kind": "queue", "name": "q", "attributes": {}}),
            ("down", {}),
            ("objects.create", {"kind": "queue", "name": "q", "attributes": {}}),
        )
    ):
        carry_out(world.controller.admin(ASKER, number, operation, arguments, world.now))
    assert [one for one in order if one != "Record"] == [
        *("Commit", "WriteDown", "Reply"),
        *("WriteDown", "Reply", "StopNode"),
        *("WriteDown", "Reply"),
    ]


def test_a_change_that_is_not_durable_is_written_as_refused(world: World) -> None:
    world.store_refuses = True
    assert refused(world, ANNA, "objects.create", kind="queue", name="q", attributes={}) == errors.INTERNAL
    (entry,) = entries(world)
    assert (entry["outcome"], "changes" in entry) == (errors.INTERNAL, False)


@pytest.mark.requirement("R259")
def test_refusals_are_written_and_reads_are_not(world: World) -> None:
    for operation in ("objects.list", "config.export", "health"):
        world.call(operation, **({"kind": "queue"} if operation == "objects.list" else {}))
    assert refused(world, LOCAL, "objects.show", kind="queue", name="missing") == errors.OBJECT_NOT_FOUND
    world.ask("config.apply", objects=[["queue", "default", "q", {}]], dry_run=True)
    assert entries(world) == []
    refused(world, ANNA, "config.export")
    refused(world, ANNA, "objects.delete", kind="queue", name="missing")
    refused(world, Claim("management", "nobody", "10.0.0.8"), "health")
    assert [(one["who"], one["role"], one["operation"], one["outcome"]) for one in entries(world)] == [
        ("anna", "operator", "config.export", errors.OPERATOR_DENIED),
        ("anna", "operator", "objects.delete", errors.OBJECT_NOT_FOUND),
        ("nobody", "", "health", errors.UNAUTHORIZED),
    ]
    world.call("objects.create", kind="queue", name="q", attributes={})
    page = world.controller.metrics(world.now).splitlines()
    counted = {
        f'angarium_node_audit_entries_total{{outcome="{name}"}} {n}'
        for name, n in (("done", 2), ("refused", 3))
    }
    assert counted <= {*page}, "with the one that made anna"


@pytest.mark.requirement("R258", "R259")
def test_logins_are_written_however_they_ended(world: World) -> None:
    for name, outcome in (("anna", "done"), ("anna", errors.UNAUTHORIZED), ("nobody", "wrong password")):
        given = {"name": name, "address": "10.0.0.7", "method": "password"}
        world.ask("operators.logged_in", **given, outcome=outcome)
    assert [(one["who"], one["role"], one["operation"], one["outcome"]) for one in entries(world)] == [
        ("anna", "operator", "login", "done"),
        ("anna", "operator", "login", errors.UNAUTHORIZED),
        ("nobody", "", "login", "wrong password"),
    ]
    assert entries(world)[0]["asked"] == {"method": "password"}


def test_what_is_no_change_of_an_object_is_written_with_what_it_is_about(world: World) -> None:
    world.hello("router")
    world.hello("worker")
    world.news(router="ready", worker="ready")
    asked = world.call_as(ANNA, "endpoints.purge", kind="queue", name="#DEAD_MSG_QUEUE", vpn="default")
    assert entries(world) == [], "it is written when it is done"
    world.answer(asked, {"messages": 3, "bytes": 9})
    world.answer(world.call_as(ANNA, "clients.disconnect", name="c", vpn="default"), None)
    world.ask("down")
    purged, ended, down = entries(world)
    assert purged["asked"] == {"kind": "queue", "vpn": "default", "name": "#DEAD_MSG_QUEUE"}
    assert ended["asked"] == {"vpn": "default", "name": "c"}
    assert (down["who"], down["door"], down["operation"]) == (OWNER, "local", "down")


def test_two_requests_of_the_same_number_are_both_written(world: World) -> None:
    """Numbers are said by who asks: nobody hides a deed behind another one."""
    world.hello("router")
    world.news(router="ready")
    for name in ("c", "d"):
        effects = world.controller.admin(ASKER, 5, "clients.disconnect", {"name": name}, world.now)
        world.answer(world.do(effects), None)
    assert [one["asked"]["name"] for one in entries(world)] == ["c", "d"]


def test_a_node_that_is_stopped_without_an_operation_was_stopped_by_its_owner(world: World) -> None:
    world.do(world.controller.stopped())
    (entry,) = entries(world)
    assert (entry["who"], entry["operation"]) == (OWNER, "down")
    world.ask("down")
    world.do(world.controller.stopped())
    assert len(entries(world)) == 2, "it is written once"


# -- secrets -----------------------------------------------------------------------------------------------------

SECRET = "s3cr3t-s3cr3t"


@pytest.mark.requirement("R259")
def test_no_secret_is_written_wherever_it_stands_in_a_request(world: World) -> None:
    hashed = f"scrypt$16384$8$1$00${SECRET.encode().hex()}"
    for claim in (LOCAL, ANNA, Claim("management", "nobody", "")):
        for kind in ("username", "operator"):
            for attributes in (
                {"password": SECRET},
                {"password": hashed},
                {"pasword": SECRET},
                {SECRET: 1},
                {"password": SECRET, "role": SECRET},
                {"password": [SECRET]},
            ):
                for verb in ("create", "update"):
                    world.call_as(claim, f"objects.{verb}", kind=kind, name="u", attributes=attributes)
                world.call_as(claim, "config.apply", objects=[[kind, "default", "u", attributes]])
                world.call_as(claim, "config.apply", objects=[[SECRET, "default", "u", attributes]])
        world.call_as(claim, "down", password=SECRET)
        world.call_as(claim, "cluster.token.create", authority=SECRET, addresses=[SECRET])
    written = b"".join(world.written)
    assert world.written
    assert SECRET.encode() not in written
    assert SECRET.encode().hex().encode() not in written
    changed = [one for entry in entries(world) for one in entry.get("changes", ())]
    assert any((one["after"] or {}).get("password") == "(changed)" for one in changed)


def test_authorities_may_come_with_a_key_and_are_not_written() -> None:
    before, after = (objects.complete("bridge", {"ca_pem": text, "remote_vpn": "x"}) for text in ("", SECRET))
    (line,) = AuditLog().lines(
        Deed(WHO, "objects.update", {}), "done", TIME, [Changed("bridge", "default", "b", before, after)]
    )
    assert json.loads(line)["changes"][0]["after"] == {"ca_pem": "(changed)"}


#: Whatever a request may hold.
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
GIVEN = st.dictionaries(
    st.sampled_from(["kind", "vpn", "name", "attributes", "target", "positions", "dry_run", "password", "x"]),
    VALUES | st.sampled_from(["queue", "username", "a\nb", '"', "\u2028", "\ud800", "x" * 100_000]),
)


@given(GIVEN, st.sampled_from(sorted(CHANGES)), st.text(), st.text(), st.sampled_from(["done", 40018]))
def test_whatever_a_request_holds_is_one_line_of_json_with_a_limit(
    asked: dict[str, Any], operation: str, name: str, address: str, outcome: Any
) -> None:
    audit_log = AuditLog()
    who = Who(name, "viewer", name, "management", address)
    for line in audit_log.lines(Deed(who, operation, asked), outcome, TIME):
        assert line.endswith(b"\n")
        assert len(line.splitlines()) == len(line.decode().splitlines()) == 1
        assert len(line) <= module.LINE_BYTES_MAX
        entry = json.loads(line, parse_constant=pytest.fail)
        assert entry["outcome"] == outcome
        assert "password" not in entry.get("asked", {})
    audit_log.validate()


# -- limits ------------------------------------------------------------------------------------------------------


def test_of_a_long_list_it_is_written_what_came_and_went() -> None:
    filters = [f"a/{number}" for number in range(1_000)]
    before = objects.complete("queue", {"subscriptions": filters})
    after = objects.complete("queue", {"subscriptions": [*filters[1:], "new"]})
    (line,) = AuditLog().lines(
        Deed(WHO, "objects.update", {}), "done", TIME, [Changed("queue", "default", "q", before, after)]
    )
    (change,) = json.loads(line)["changes"]
    assert (change["before"], change["after"]) == ({"subscriptions": ["a/0"]}, {"subscriptions": ["new"]})


def test_very_many_objects_are_several_lines_and_the_rest_is_counted() -> None:
    made = objects.complete("queue", {"max_ttl_s": 7})
    changed = [Changed("queue", "default", f"q{n}", None, made) for n in range(module.OBJECTS_MAX + 5)]
    audit_log, deed = AuditLog(), Deed(WHO, "config.apply", {})
    found = [json.loads(line) for line in audit_log.lines(deed, "done", TIME, changed)]
    assert sum(len(entry["changes"]) for entry in found) == module.OBJECTS_MAX
    assert {entry["objects_left_out"] for entry in found} == {5}
    assert audit_log.lines(deed, "done", TIME, changed) == [], "it is written once"


def test_a_line_that_would_be_too_long_names_its_objects_only() -> None:
    long = {"subscriptions": [f"{'é' * 80}{n}" for n in range(20)]}
    changed = [Changed("queue", "default", f"q{n}", None, objects.complete("queue", long)) for n in range(50)]
    (line,) = AuditLog().lines(Deed(WHO, "config.apply", {}), "done", TIME, changed)
    entry = json.loads(line)
    assert entry["is_cut"]
    assert entry["changes"][0] == {"kind": "queue", "vpn": "default", "name": "q0"}
    assert len(line) <= module.LINE_BYTES_MAX


def test_so_many_entries_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_MAX", 10)
    audit_log = AuditLog()
    for _ in range(25):
        audit_log.lines(Deed(WHO, "down", {}), "done", TIME)
        audit_log.validate()
    assert [entry["number"] for entry in audit_log.find(None, "", 100)] == list(range(16, 26))
    monkeypatch.setattr(module, "ENTRIES_BYTES_MAX", 500)
    audit_log.lines(Deed(WHO, "down", {}), "done", TIME)
    assert len(audit_log.find(None, "", 100)) < 5


# -- looking -----------------------------------------------------------------------------------------------------


def test_entries_are_found_by_number_by_time_and_by_who(world: World) -> None:
    for at, (claim, level) in enumerate(((LOCAL, "INFO"), (ANNA, "INFO"), (LOCAL, "DEBUG"))):
        world.time = f"2031-05-04T10:00:0{at}.000Z"
        world.call_as(claim, "log_level", level=level)
    first, second, third = world.ask("audit", limit=3)
    assert (first["who"], second["who"], third["asked"]) == (OWNER, "anna", {"level": "DEBUG"})
    assert world.ask("audit", since=first["number"], limit=1) == [second]
    assert world.ask("audit", since="2031-05-04T10:00:02Z") == [third]
    assert world.ask("audit", who="anna") == [second]
    assert refused(world, LOCAL, "audit", since="yesterday") == errors.INVALID_ARGUMENT
    assert refused(world, ANNA, "audit") == errors.OPERATOR_DENIED


def test_numbers_go_on_after_a_restart() -> None:
    audit_log = AuditLog()
    (line,) = audit_log.lines(Deed(WHO, "down", {}), "done", TIME)
    (later,) = AuditLog([json.loads(line)]).lines(Deed(WHO, "down", {}), "done", TIME)
    assert json.loads(later)["number"] == json.loads(line)["number"] + 1


# -- a full disk -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R259")
def test_without_room_reads_go_on_and_only_what_makes_room_is_changed(world: World) -> None:
    world.ask("objects.create", kind="queue", name="q", attributes={})
    world.do(world.controller.audit_log_has("low"))
    assert refused(world, LOCAL, "objects.create", kind="queue", name="p", attributes={}) == errors.DISK_FULL
    assert refused(world, LOCAL, "config.apply", objects=[]) == errors.DISK_FULL
    assert world.ask("config.apply", objects=[], dry_run=True) == []
    assert world.ask("objects.list", kind="queue", name="q")
    assert world.ask("objects.delete", kind="queue", name="q") is None
    world.do(world.controller.audit_log_has("none"))
    assert refused(world, LOCAL, "objects.delete", kind="queue", name="p") == errors.DISK_FULL
    assert world.ask("objects.list", kind="queue", name="q") == []
    world.do(world.controller.audit_log_has("plenty"))
    world.ask("objects.create", kind="queue", name="p", attributes={})
    told = [row["text"] for row in world.ask("events") if row["event"] == "SYSTEM_DISK_FULL"]
    assert len(told) == 1
    assert "audit log" in told[0]
    assert errors.DISK_FULL not in {entry["outcome"] for entry in entries(world)}, (
        "nothing is written of these"
    )


def test_what_clients_and_the_node_change_is_not_of_an_operator(world: World) -> None:
    world.do(world.controller.event({"event": "E", "scope": "SYSTEM", "text": "t", "newest_endpoint": 50}))
    assert entries(world) == []


def refusal_lines(audit_log: AuditLog, times: int, at: str = TIME, **changed: Any) -> list[dict[str, Any]]:
    """Refuse so often, and give what was written."""
    who = WHO._replace(**{name: changed[name] for name in changed.keys() & {"name", "address"}})
    lines = []
    for _ in range(times):
        deed = Deed(who, "config.export", {"name": changed.get("asked", "q")})
        lines += audit_log.lines(deed, changed.get("outcome", errors.OPERATOR_DENIED), at)
    audit_log.validate()
    return [json.loads(line) for line in lines]


@pytest.mark.requirement("R259")
def test_refusals_that_repeat_are_counted_for_a_minute() -> None:
    audit_log = AuditLog()
    (first,) = refusal_lines(audit_log, 1_000)
    assert (first["number"], "repeated" in first) == (1, False)
    assert len(refusal_lines(audit_log, 5, address="10.0.0.8")) == 1, "another address"
    assert len(refusal_lines(audit_log, 5, name="ben")) == 1, "somebody else"
    assert len(refusal_lines(audit_log, 5, outcome=errors.UNAUTHORIZED)) == 1
    assert audit_log.repeats(TIME.replace("10:00:00", "10:00:59")) == []
    later = TIME.replace("10:00:00", "10:01:00")
    told = [json.loads(line) for line in audit_log.repeats(later)]
    assert [one["repeated"] for one in told] == [999, 4, 4, 4]
    assert told[0] == {**first, "number": 5, "time": TIME, "repeated": 999, "since": TIME}
    assert audit_log.repeats(later) == []
    assert len(refusal_lines(audit_log, 5, at=later)) == 1, "the next minute begins with a line"
    assert [json.loads(line)["repeated"] for line in audit_log.end()] == [4]
    assert audit_log.end() == []
    assert [entry["number"] for entry in audit_log.find(None, "", 100)] == list(range(1, 11))


def test_very_many_different_refusals_of_an_address_are_one() -> None:
    audit_log = AuditLog()
    written = [one for number in range(100) for one in refusal_lines(audit_log, 1, asked=f"q{number}")]
    assert len(written) == DISTINCT_MAX + 1
    assert refusal_lines(audit_log, 1, asked="q", address="10.0.0.8"), "others are told apart as before"
    (told,) = [json.loads(line) for line in audit_log.end()]
    assert (told["repeated"], told["is_various"]) == (100 - DISTINCT_MAX - 1, True)


def test_a_clock_that_is_set_back_ends_a_minute_and_too_many_end_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = short(200, long=module.OPEN_MAX)
    monkeypatch.setattr(module, "OPEN_MAX", most)
    audit_log = AuditLog()
    refusal_lines(audit_log, 3)
    assert len(audit_log.repeats(TIME.replace("10:00:00", "09:59:00"))) == 1
    refusal_lines(audit_log, 3)
    told = [one for number in range(most) for one in refusal_lines(audit_log, 1, address=f"address {number}")]
    assert [one for one in told if "repeated" in one] == [one for one in told if one.get("repeated") == 2]
    assert len(told) == most + 1


def test_logins_and_changes_are_never_counted_instead_of_written() -> None:
    audit_log = AuditLog()
    for operation, outcome in ((LOGIN, "done"), ("objects.create", "done"), ("objects.create", 40901)):
        assert all(audit_log.lines(Deed(WHO, operation, {}), outcome, TIME) for _ in range(5))
    assert audit_log.end() == []


@pytest.mark.requirement("R259")
def test_the_controller_writes_the_count_of_refusals_when_their_minute_is_over(world: World) -> None:
    for _ in range(4):
        refused(world, ANNA, "config.export")
    (entry,) = entries(world)
    world.do(world.controller.stopped())
    counted = entries(world)[1]
    assert (counted["operation"], counted["repeated"]) == (entry["operation"], 3)
