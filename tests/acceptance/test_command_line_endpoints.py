"""The `angarium` command as operators use it: queues, what they hold, templates, the spool, backups."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.command_shell import Shell
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


def spooled(shell: Shell, queue: str) -> int:
    found: int = shell.run("queue", "show", queue, "--json").object["messages_spooled"]
    return found


def publish(shell: Shell, topic: str, *payloads: str) -> None:
    for payload in payloads:
        shell.run("pub", topic, payload)


def fill(shell: Shell, queue: str, *payloads: str) -> None:
    """Make a queue with a message for each payload, by topics that nothing else matches."""
    shell.run("queue", "create", queue, "--subscription", f"to/{queue}")
    publish(shell, f"to/{queue}", *payloads)
    wait_until(lambda: spooled(shell, queue) == len(payloads), f"{len(payloads)} messages in {queue}")


def payloads(shell: Shell, queue: str) -> list[str]:
    rows = shell.run("queue", "messages", queue, "--json").rows
    return [
        shell.run("message", "show", queue, str(row["position"]), "--json").object["payload"] for row in rows
    ]


def expect_payloads(shell: Shell, wanted: dict[str, list[str]]) -> None:
    """Wait until queues hold these messages."""
    wait_until(lambda: {queue: payloads(shell, queue) for queue in wanted} == wanted, f"{wanted}")


# Queues and topic endpoints.


@pytest.mark.requirement("R92", "R98", "R119", "R133", "R134")
def test_an_endpoint_is_created_listed_shown_updated_and_deleted(shell: Shell) -> None:
    for kind in ("queue", "topic-endpoint"):
        made = shell.run(kind, "create", "first/q", "--set", "max_ttl_s=9", "--json").object
        assert made.items() >= {"kind": kind, "max_ttl_s": 9, "permission": "no-access"}.items()
        assert [row["name"] for row in shell.run(kind, "list", "first/*", "--json").rows] == ["first/q"]
        changed = shell.run(kind, "update", "first/q", "--set", "permission=consume", "--json").object
        assert (changed["permission"], changed["id"]) == ("consume", made["id"])
        closed = shell.run(kind, "update", "first/q", "--set", "permission=none", "--json").object
        assert closed["permission"] == "no-access"
        shell.run(kind, "update", "first/q", "--set", "permission=consume")
        shown = shell.run(kind, "show", "first/q", "--json").object
        assert shown.items() >= {"permission": "consume", "messages_spooled": 0, "bind_count": 0}.items()
        assert shell.run(kind, "delete", "first/q", "--json").object["deleted"] is True
        assert shell.run(kind, "show", "first/q", status=1).err.startswith("error 40401: ")


@pytest.mark.requirement("R122", "R124", "R151")
def test_exceptions_keep_messages_out(shell: Shell) -> None:
    shell.run("queue", "create", "Q", "--subscription", "animals/f*", "--subscription", "!animals/fox")
    for animal in ("frog", "fox", "fish"):
        publish(shell, f"animals/{animal}", animal)
    wait_until(lambda: spooled(shell, "Q") == 2, "two animals")
    assert payloads(shell, "Q") == ["frog", "fish"]
    shell.run("queue", "update", "Q", "--remove-subscription", "!animals/fox")
    publish(shell, "animals/fox", "fox")
    wait_until(lambda: payloads(shell, "Q") == ["frog", "fish", "fox"], "a fox")
    shell.run("queue", "delete", "Q")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["q", "--subscription", "#share/g/a"], 40316, "non-exclusive queue"),
        (["a*"], 40022, "no * ? ' < > & ;"),
        (["#mine"], 40022, "a name has"),
        (["q", "--set", "partition_count=2"], 40015, "access_type=non-exclusive"),
        (["q", "--set", "max_spool_usage=1"], 40015, "did you mean 'max_spool_usage_mb'"),
        (["q", "--set", "id=1"], 40015, "set by the node"),
        (["q", "--vpn", "none"], 40401, "none"),
    ],
)
@pytest.mark.requirement("R23")
def test_what_cannot_be_is_refused_with_what_to_do(
    shell: Shell, arguments: list[str], code: int, told: str
) -> None:
    ended = shell.run("queue", "create", *arguments, status=1)
    assert ended.err.startswith(f"error {code}: ")
    assert told in ended.err


def test_a_queue_for_dead_messages_that_is_not_there_is_hinted_at(shell: Shell) -> None:
    named = ("--set", "dead_message_queue=nowhere")
    hint = "hint: there is no queue 'nowhere' yet: without it messages that die in 'mortal' are deleted\n"
    assert hint in shell.run("queue", "create", "mortal", *named).err
    assert shell.run("queue", "update", "mortal", *named, "--json").err == hint
    assert shell.run("queue", "update", "mortal", *named, "-q").err == ""
    for others in ("dead_message_queue=mortal", "dead_message_queue=", "max_redelivery_count=3"):
        assert shell.run("queue", "update", "mortal", "--set", others).err == ""
    shell.run("queue", "create", "nowhere")
    assert shell.run("queue", "update", "mortal", *named).err == ""
    for queue in ("mortal", "nowhere"):
        shell.run("queue", "delete", queue)


def test_subscriptions_that_others_take_the_place_of_are_named(shell: Shell) -> None:
    filters = [f"old/{number}" for number in range(5)]
    shell.run("queue", "create", "Q", *(part for text in filters for part in ("--subscription", text)))
    kept = [part for text in (*filters, "new") for part in ("--set", f"subscriptions={text}")]
    assert shell.run("queue", "update", "Q", *kept).err == ""
    told = shell.run("queue", "update", "Q", "--set", "subscriptions=new").err
    assert told.startswith(
        "hint: --set subscriptions replaces all of them, 'old/0', 'old/1', 'old/2' and 2 more"
    )
    assert "--subscription adds one, --remove-subscription takes one away" in told
    assert shell.run("queue", "update", "Q", "--set", "subscriptions=newer", "-q").err == ""
    shell.run("queue", "delete", "Q")


def test_a_name_that_is_not_there_leads_to_the_one_that_is_meant(shell: Shell) -> None:
    shell.run("queue", "create", "orders")
    ways = (
        ("show", "ordres"),
        ("update", "ordres", "--set", "max_redelivery_count=1"),
        ("delete", "ordres", "--yes"),
        ("purge", "ordres", "--yes"),
        ("move", "ordres", "--to", "orders"),
    )
    for way in ways:
        told = shell.run("queue", *way, status=1).err
        assert "did you mean 'orders'? ('angarium queue list' shows the names)" in told, told
    assert "mean" not in shell.run("queue", "show", "x", status=1).err
    assert "queue 'nowhere'" in shell.run("queue", "move", "orders", "--to", "nowhere", status=1).err
    assert "mean" not in shell.run("queue", "show", "orders", "--vpn", "defalt", status=1).err
    assert "did you mean 'default'? ('angarium vpn list'" in shell.run("vpn", "show", "defalt", status=1).err
    shell.run("vpn", "create", "far")
    shell.run("profile", "create", "small", "--vpn", "far")
    told = shell.run("profile", "update", "smal", "--vpn", "far", "--set", "eliding=true", status=1).err
    assert "did you mean 'small'? ('angarium profile list --vpn far' shows the names)" in told
    shell.run("profile", "delete", "small", "--vpn", "far", "--yes")
    shell.run("vpn", "delete", "far", "--yes")
    shell.run("queue", "delete", "orders", "--yes")


def test_the_attributes_of_a_queue_are_listed(shell: Shell) -> None:
    rows = {row["attribute"]: row for row in shell.run("queue", "attributes", "--json").rows}
    assert rows["max_delivered_unacked_per_flow"]["range"] == "1..1000000"
    assert "id" not in rows


def test_a_template_is_an_object_like_others(shell: Shell) -> None:
    made = shell.run("template", "create", "small", "--set", "name_filter=tmp/>", "--json").object
    assert (made["name_filter"], made["kind_of_endpoint"]) == ("tmp/>", "queue")
    assert shell.run("template", "update", "small", "--set", "name_filter=*", status=1).err.startswith(
        "error 40015: "
    )
    shell.run("template", "delete", "small")


# What queues hold.


def test_messages_are_listed_shown_and_deleted(shell: Shell) -> None:
    fill(shell, "L", "one", "two", "three")
    rows = shell.run("queue", "messages", "L", "--json").rows
    assert [(row["position"], row["topic"], row["state"]) for row in rows] == [
        (1, "to/L", "ready"),
        (2, "to/L", "ready"),
        (3, "to/L", "ready"),
    ]
    assert [
        row["position"]
        for row in shell.run("queue", "messages", "L", "--after", "1", "--limit", "1", "--json").rows
    ] == [2]
    assert (
        shell.run("message", "show", "L", "2", "--json").object.items()
        >= {"payload": "two", "mode": "non-persistent"}.items()
    )
    assert shell.run("message", "delete", "L", "2", "9", "--json").object["deleted"] == 1
    expect_payloads(shell, {"L": ["one", "three"]})
    assert shell.run("message", "show", "L", "2", status=1).err.startswith("error 40401: ")
    assert shell.run("queue", "purge", "L", "--json").object["purged"] == 2
    wait_until(lambda: spooled(shell, "L") == 0, "an empty queue")
    assert shell.run("queue", "messages", "L").lines == ["queue L holds no messages"]
    assert shell.run("queue", "messages", "L", "--after", "1").lines == ["queue L holds no such message"]
    shell.run("queue", "delete", "L")


def test_a_selector_chooses_and_a_wrong_one_is_refused(shell: Shell) -> None:
    shell.run("queue", "create", "S", "--subscription", "to/S")
    for price in (5, 15, 25):
        shell.run("pub", "to/S", str(price), "--property", f"price={price}")
    wait_until(lambda: spooled(shell, "S") == 3, "three messages")
    rows = shell.run("queue", "messages", "S", "--selector", "price > 10", "--json").rows
    assert [row["position"] for row in rows] == [2, 3]
    assert shell.run("queue", "messages", "S", "--selector", "price >", status=1).err.startswith(
        "error 40601: "
    )
    shell.run("queue", "delete", "S")


@pytest.mark.long  # tests/integration/test_guaranteed_lives.py does so
def test_messages_are_copied_moved_and_sent_back(shell: Shell) -> None:
    fill(shell, "from", "a", "b", "c")
    shell.run("queue", "create", "to")
    assert shell.run("queue", "copy", "from", "--to", "to", "--limit", "1", "--json").object == {
        "done": 1,
        "refused": 0,
        "kept": 0,
    }
    expect_payloads(shell, {"from": ["a", "b", "c"], "to": ["a"]})
    assert shell.run("queue", "move", "from", "--to", "to", "--json").object["done"] == 3
    expect_payloads(shell, {"from": [], "to": ["a", "a", "b", "c"]})
    assert shell.run("queue", "redrive", "to", "--json").object == {"done": 3, "refused": 0, "kept": 1}
    again = shell.run("queue", "redrive", "to")
    assert again.lines == ["0 messages sent back, 1 stays: copied to it, published to it or sent back before"]
    assert again.err == ""
    expect_payloads(shell, {"from": ["a", "b", "c"], "to": ["a"]})
    positions = [str(one["position"]) for one in shell.run("queue", "messages", "from", "--json").rows]
    chosen = ("--position", positions[2], "--position", positions[0])
    assert shell.run("queue", "move", "from", "--to", "to", *chosen, "--json").object["done"] == 2
    expect_payloads(shell, {"from": ["b"], "to": ["a", "a", "c"]})
    for queue in ("from", "to"):
        shell.run("queue", "delete", queue)


def test_a_target_that_refuses_leaves_the_messages_where_they_are(shell: Shell) -> None:
    fill(shell, "stay", "a", "b")
    shell.run("queue", "create", "shut", "--set", "ingress_enabled=false")
    ended = shell.run("queue", "move", "stay", "--to", "shut", status=1)
    assert ended.err.startswith("error 50311: ")
    wait_until(lambda: spooled(shell, "stay") == 2, "both messages where they were")
    assert shell.run("queue", "move", "stay", "--to", "none", status=1).err.startswith("error 40401: ")
    assert shell.run("queue", "move", "stay", "--to", "stay", status=1).err.startswith("error 40018: ")
    for queue in ("stay", "shut"):
        shell.run("queue", "delete", queue)


@pytest.mark.requirement("R202")
def test_expired_messages_are_found_in_the_queue_for_dead_messages(shell: Shell) -> None:
    shell.run("queue", "create", "brief", "--subscription", "to/brief")
    shell.run("pub", "to/brief", "late", "--ttl-ms", "50")
    dead = "#DEAD_MSG_QUEUE"
    wait_until(lambda: spooled(shell, dead) == 1, "a dead message")
    (row,) = shell.run("queue", "messages", dead, "--json").rows
    assert row["origin"] == ["queue", "brief", "expired"]
    assert shell.run("queue", "redrive", dead, "--json").object["done"] == 1
    wait_until(lambda: payloads(shell, "brief") == ["late"], "the message where it came from")
    shell.run("queue", "delete", "brief")


# The spool.


def test_the_spool_is_shown_and_checked(shell: Shell) -> None:
    fill(shell, "V", "x" * 1000)
    shown = shell.run("spool", "show", "--json").object
    assert shown["messages"] >= 1
    assert {row["worker"] for row in shown["workers"]} == {0, 1}
    assert shell.run("status", "--json").object["spool"]["files"] >= 1
    assert shell.run("spool", "verify", "--json").object == {"good": True, "faults": []}
    shell.run("queue", "delete", "V")


@pytest.fixture
def own_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Give a node that a test may stop and start as it likes."""
    shell = Shell(tmp_path_factory.mktemp("own"))
    shell.run("up", "--detach", "--workers", "2", "--listen", "tcp://127.0.0.1:0")
    try:
        yield shell
    finally:
        shell.run("down")
        shell.clear()


@pytest.mark.long  # test_how_to.py does as the page on it says
@pytest.mark.requirement("R96", "R97")
def test_a_backup_brings_back_queues_and_messages(own_node: Shell) -> None:
    shell = own_node
    fill(shell, "one", "a", "b")
    fill(shell, "two", "c")
    made = shell.run("spool", "backup", "node.backup", "--json").object
    assert made["workers"] == 2
    assert shell.run("spool", "backup", "node.backup", status=1).err.startswith("error 40901: ")
    assert shell.run("spool", "restore", "node.backup", status=1).err.startswith("error 40902: ")
    shell.run("queue", "purge", "one")
    shell.run("queue", "delete", "two")
    shell.run("down")
    assert shell.run("spool", "verify", "--json").object["good"] is True
    restored: dict[str, Any] = shell.run("spool", "restore", "node.backup", "--json").object
    assert restored["replaced"]
    shell.run("up", "--detach")
    expect_payloads(shell, {"one": ["a", "b"], "two": ["c"]})
    publish(shell, "to/one", "d")
    wait_until(lambda: payloads(shell, "one") == ["a", "b", "d"], "a new message behind the old ones")


@pytest.mark.requirement("R96", "R212", "R213")
def test_queues_and_messages_survive_a_restart_and_a_change_of_workers(own_node: Shell) -> None:
    shell = own_node
    for queue in ("one", "two", "three"):
        fill(shell, queue, f"{queue}-a", f"{queue}-b")
    assert {row["homes"][0] for row in shell.run("queue", "list", "--json").rows} == {0, 1}
    shell.run("down")
    shell.run("up", "--detach")
    shell.run("worker", "scale", "1", "--wait")

    def counts() -> dict[str, int]:
        rows = shell.run("queue", "list", "--json").rows
        return {row["name"]: row["messages_spooled"] for row in rows if not row["name"].startswith("#")}

    def holds(name: str) -> bool:
        return payloads(shell, name) == [f"{name}-a", f"{name}-b"]

    wait_until(lambda: counts() == {"one": 2, "two": 2, "three": 2}, "all at the worker that is left")
    for queue in ("one", "two", "three"):
        wait_until(partial(holds, queue), f"the content of {queue}")
    assert {row["homes"][0] for row in shell.run("queue", "list", "--json").rows} == {0}
