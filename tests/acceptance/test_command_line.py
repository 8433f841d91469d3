"""The `angarium` command as scripts use it: a node, messages, measurements; no server is imported."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.acceptance.command_shell import TIMEOUT_S, Shell

pytestmark = pytest.mark.slow

#: What status says of listeners, beside that for clients of our own protocol.
KINDS_OF_LISTENERS = ("mqtt", "http", "management")


# A node from the first start to its end.


@pytest.mark.requirement("R1", "R206", "R217", "R219")
def test_a_node_starts_says_when_it_is_ready_and_stops_with_all_its_processes(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    ready_file = tmp_path / "ready"
    up = shell.start("up", "--listen", "tcp://127.0.0.1:0", "--workers", "2", "--ready-file", str(ready_file))
    try:
        shell.wait_for_file(ready_file, up)
        ready = json.loads(ready_file.read_text())
        assert ready.keys() >= {"node", "url", "pid", "processes"}
        assert ready["pid"] == up.pid
        roles = sorted((process["role"], process["index"]) for process in ready["processes"])
        assert {role for role, _ in roles} >= {"controller", "router", "worker"}
        assert [index for role, index in roles if role == "worker"] == [0, 1]
        subscriber = shell.subscribe("a", "--count", "1", "--url", ready["url"])
        shell.run("pub", "a", "hello", "--url", ready["url"])
        assert shell.finish(subscriber).lines == ["a hello"]
    finally:
        shell.run("down")
    shell.finish(up)
    assert [process for process in ready["processes"] if Path(f"/proc/{process['pid']}").exists()] == []


@pytest.mark.long  # tests/integration/test_supervisor.py starts a node again
def test_a_node_keeps_its_ports_and_its_objects_over_a_restart(tmp_path: Path) -> None:
    """Connections that the node ended first are remembered by the kernel for a minute; they keep no port from it."""
    shell = Shell(tmp_path)
    listeners = (
        "--mqtt",
        "tcp://127.0.0.1:0",
        "--http",
        "http://127.0.0.1:0",
        "--management",
        "http://127.0.0.1:0",
    )
    up = ("up", "--detach", "--listen", "tcp://127.0.0.1:0", *listeners, "--json")
    first = shell.run(*up, "--workers", "1").object
    status = {}
    with ExitStack() as connections:
        try:
            shell.run("vpn", "create", "orders")
            status = shell.run("status", "--json").object
            for url in (status["url"], *(status[name][0] for name in KINDS_OF_LISTENERS)):
                place = urlsplit(url)
                connections.enter_context(socket.create_connection((place.hostname, place.port)))
        finally:
            shell.run("down")
    try:
        assert shell.run(*up).object["url"] == first["url"]
        now = shell.run("status", "--json").object
        assert {name: now[name] for name in KINDS_OF_LISTENERS} == {
            name: status[name] for name in KINDS_OF_LISTENERS
        }
        assert shell.run("vpn", "show", "orders", "--json").object["name"] == "orders"
    finally:
        shell.run("down")


def test_down_without_a_node_says_so(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    assert "error 50308" in shell.run("down", status=1).err


def test_status_shows_processes_sessions_rates_and_discards(shell: Shell) -> None:
    status = shell.run("status", "--json").object
    expected = {
        "node",
        "url",
        "uptime_s",
        "processes",
        "sessions",
        "subscriptions",
        "rates",
        "discards",
        "links",
        "errors",
    }
    assert status.keys() >= expected
    for process in status["processes"]:
        assert process.keys() >= {"role", "index", "pid", "state", "restarts", "rss_bytes", "cpu_percent"}
        assert process["state"] == "ready"
        assert process["restarts"] == 0
    assert {process["role"] for process in status["processes"]} >= {
        "supervisor",
        "controller",
        "router",
        "worker",
    }


def test_top_looks_again_and_again(shell: Shell) -> None:
    looks = shell.run("top", "--count", "2", "--interval", "0.1", "--json").rows
    assert [look["node"] for look in looks] == [looks[0]["node"]] * 2


def test_workers_are_listed(shell: Shell) -> None:
    assert [worker["index"] for worker in shell.run("worker", "list", "--json").rows] == [0, 1]


def test_events_tell_what_happened_and_follow(shell: Shell) -> None:
    shell.run("vpn", "create", "eventful")
    seen = shell.run("events", "--json").rows
    assert seen
    assert all(event.keys() >= {"id", "time", "severity", "scope", "event", "text"} for event in seen)
    last = seen[-1]["id"]
    assert shell.run("events", "--since", str(last), "--json").rows == []
    assert len(shell.run("events", "--since", "1h", "--json").rows) == len(seen)
    assert len(shell.run("events", "--limit", "1", "--json").rows) == 1
    shell.run("vpn", "delete", "eventful")


# Messages.


@pytest.mark.requirement("R2")
def test_a_message_is_direct_unless_told_otherwise(shell: Shell) -> None:
    subscriber = shell.subscribe("mode/test", "--count", "1", "--json")
    assert (
        shell.run("pub", "mode/test", "x", "--json").object.items() >= {"published": 1, "nacked": 0}.items()
    )
    assert shell.finish(subscriber).object["mode"] == "direct"


def test_what_is_published_with_options_arrives_with_them(shell: Shell) -> None:
    subscriber = shell.subscribe("all/options", "--count", "1", "--json")
    options = "--cos 3 --dto --eliding --priority 7 --ttl-ms 60000 --reply-to answers/1 --correlation-id c-1"
    properties = ["--property", "n=1", "--property", "t=x", "--property", 'q="1"', "--property", "b=true"]
    shell.run("pub", "all/options", "päyload", *options.split(), *properties)
    message = shell.finish(subscriber).object
    assert (
        message.items()
        >= {
            "topic": "all/options",
            "payload": "päyload",
            "index": 0,
            "cos": 3,
            "dto": True,
            "eliding": True,
            "priority": 7,
            "ttl_ms": 60000,
            "reply_to": "answers/1",
            "correlation_id": "c-1",
            "properties": {"n": 1, "t": "x", "q": "1", "b": True},
        }.items()
    )


def test_a_message_without_a_payload_is_empty(shell: Shell) -> None:
    subscriber = shell.subscribe("empty", "--count", "1", "--json")
    shell.run("pub", "empty")
    assert shell.finish(subscriber).object["payload"] == ""


@pytest.mark.requirement("R3", "R210")
def test_lines_of_a_file_arrive_in_order_over_many_topics(shell: Shell) -> None:
    """The topics of one publisher are spread over both workers; the subscriber sees the order of the file."""
    rows = [b"%d,row \xff %d" % (number, number * 7) for number in range(20_000)]
    (shell.folder / "rows.csv").write_bytes(b"\n".join(rows))
    subscriber = shell.subscribe("rows/>", "--count", str(len(rows)), "--raw")
    done = shell.run("pub", "rows/{line%16}", "--lines", "rows.csv", "--json").object
    assert done.items() >= {"published": len(rows), "acknowledged": 0, "nacked": 0}.items()
    assert done["seconds"] > 0
    assert shell.finish(subscriber).out == b"".join(row + b"\n" for row in rows)


def test_lines_of_standard_input_count_from_0(shell: Shell) -> None:
    subscriber = shell.subscribe("stdin/>", "--count", "3")
    shell.run("pub", "stdin/{line}", "--lines", "-", stdin=b"a\n\nc")
    assert shell.finish(subscriber).lines == ["stdin/0 a", "stdin/1 ", "stdin/2 c"]


def test_a_line_leaves_before_the_next_one_is_there(shell: Shell) -> None:
    subscriber = shell.subscribe("slow/lines", "--count", "1")
    publisher = shell.start("pub", "slow/lines", "--lines", "-", "--json", stdin=subprocess.PIPE)
    assert publisher.stdin is not None
    publisher.stdin.write(b"first\n")
    publisher.stdin.flush()
    assert shell.finish(subscriber).lines == ["slow/lines first"]
    assert shell.finish(publisher).object["published"] == 1


def test_a_payload_is_repeated_and_count_ends_lines_early(shell: Shell) -> None:
    subscriber = shell.subscribe("repeat/>", "--count", "5")
    shell.run("pub", "repeat/{line%2}", "x", "--count", "3")
    shell.run("pub", "repeat/l", "--lines", "-", "--count", "2", stdin=b"a\nb\nc\n")
    assert shell.finish(subscriber).lines == [
        "repeat/0 x",
        "repeat/1 x",
        "repeat/0 x",
        "repeat/l a",
        "repeat/l b",
    ]


def test_a_payload_is_what_a_file_or_the_standard_input_has(shell: Shell) -> None:
    (shell.folder / "picture").write_bytes(b"\0\xff\n")
    subscriber = shell.subscribe("files", "--count", "3", "--raw")
    shell.run("pub", "files", "--file", "picture", "--count", "2")
    shell.run("pub", "files", "--file", "-", stdin=b"a\nb\n")
    assert shell.finish(subscriber).out == b"\0\xff\n\n" * 2 + b"a\nb\n\n"


def test_a_payload_that_was_piped_and_is_not_read_is_told(shell: Shell) -> None:
    assert "'--file -' reads it" in shell.run("pub", "unread", "-").err
    assert "hint" not in shell.run("pub", "unread", "-", "--quiet").err


def test_a_rate_is_kept(shell: Shell) -> None:
    done = shell.run("pub", "paced", "x", "--count", "201", "--rate", "400", "--json").object
    assert done["published"] == 201
    assert done["seconds"] >= 0.5


def test_a_count_that_is_not_reached_fails(shell: Shell) -> None:
    ended = shell.run("sub", "nothing/here", "--count", "1", "--idle-timeout", "0.2", status=1)
    assert "\nerror 40801: Timeout: 0 of 1 messages came" in ended.err


def test_an_idle_timeout_without_a_count_succeeds_and_counts_from_each_message(shell: Shell) -> None:
    # Longer than a command takes on a busy machine; the three messages take another two seconds.
    subscriber = shell.subscribe("idle", "--idle-timeout", "5")
    started = time.monotonic()
    shell.run("pub", "idle", "x", "--count", "3", "--rate", "1")
    assert shell.finish(subscriber).lines == ["idle x"] * 3
    assert time.monotonic() - started > 1.9 + 4.9


def test_an_interrupt_ends_a_subscriber_cleanly_with_a_summary(shell: Shell) -> None:
    subscriber = shell.subscribe("interrupted")
    shell.run("pub", "interrupted", "x")
    assert subscriber.stdout is not None
    assert subscriber.stdout.readline() == b"interrupted x\n"
    subscriber.send_signal(signal.SIGINT)
    assert "received 1 message" in shell.finish(subscriber).err


def test_an_interrupted_publisher_tells_what_it_published(shell: Shell) -> None:
    subscriber = shell.subscribe("endless")
    publisher = shell.start("pub", "endless", "x", "--count", "1000000", "--rate", "100", "--json")
    assert subscriber.stdout is not None
    assert subscriber.stdout.readline() == b"endless x\n"
    publisher.send_signal(signal.SIGINT)
    ended = shell.finish(publisher, status=1)
    assert 1 <= ended.object["published"] < 1_000_000
    subscriber.send_signal(signal.SIGTERM)
    shell.finish(subscriber)


def test_a_subscriber_ends_quietly_when_its_reader_has_gone(shell: Shell) -> None:
    subscriber = shell.subscribe("piped")
    assert subscriber.stdout is not None
    subscriber.stdout.close()
    assert subscriber.wait(TIMEOUT_S) == 1
    assert subscriber.stderr is not None
    assert subscriber.stderr.read().decode().splitlines() == [
        f"subscribed to piped at {shell.run('status', '--json').object['url']}, Ctrl-C ends"
    ]


def test_several_filters_give_one_copy_of_each_message_in_order(shell: Shell) -> None:
    subscriber = shell.subscribe("several/>", "several/1", "other", "--count", "4")
    shell.run("pub", "several/{line}", "x", "--count", "3")
    shell.run("pub", "other", "y")
    assert shell.finish(subscriber).lines == ["several/0 x", "several/1 x", "several/2 x", "other y"]


@pytest.mark.requirement("R12", "R15")
def test_members_of_a_shared_subscription_get_each_message_once(shell: Shell) -> None:
    members = [shell.subscribe("#share/group/jobs/>", "--idle-timeout", "5", "--json") for _ in range(2)]
    shell.run(
        "pub", "jobs/{line%4}", "--lines", "-", stdin=b"".join(b"%d\n" % number for number in range(200))
    )
    got = [[row["payload"] for row in shell.finish(member).rows] for member in members]
    assert sorted(got[0] + got[1], key=int) == [str(number) for number in range(200)]
    assert got[0]
    assert got[1]


@pytest.mark.requirement("R68", "R71", "R72", "R73")
def test_messages_to_one_go_to_the_client_with_the_best_local_priority(shell: Shell) -> None:
    best = shell.subscribe("one/>", "--priority", "2", "--count", "20")
    other = shell.subscribe("one/>", "--priority", "3", "--network-priority", "1", "--idle-timeout", "3")
    shell.run("pub", "one/{line%4}", "x", "--count", "20", "--dto")
    assert len(shell.finish(best).lines) == 20
    assert shell.finish(other).lines == []


def test_a_request_gets_the_output_of_a_program(shell: Shell) -> None:
    ready = shell.folder / "reply-ready"
    ready.unlink(missing_ok=True)
    answering = shell.start(
        "reply", "text/upper", "--exec", "tr a-z A-Z", "--count", "2", "--ready-file", str(ready)
    )
    shell.wait_for_file(ready, answering)
    assert shell.run("request", "text/upper", "hello").lines == ["HELLO"]
    assert shell.run("request", "text/upper", "again", "--json").object["payload"] == "AGAIN"
    shell.finish(answering)


def test_a_program_that_fails_is_told_to_the_requester(shell: Shell) -> None:
    ready = shell.folder / "failing-ready"
    answering = shell.start("reply", "fails", "--exec", "false", "--count", "1", "--ready-file", str(ready))
    shell.wait_for_file(ready, answering)
    assert "exit status 1" in shell.run("request", "fails", status=1).err
    shell.finish(answering)


def test_a_request_that_nobody_takes_fails_at_once(shell: Shell) -> None:
    assert shell.run("request", "nobody/there", "--timeout", "30", status=1).err.startswith("error 50323: ")


def test_an_address_where_no_node_is_fails_and_says_what_to_check(shell: Shell) -> None:
    ended = shell.run("pub", "a", "--url", "tcp://127.0.0.1:1", "--timeout", "0.5", status=1)
    assert ended.err.startswith("error 60003: ")
    assert "node is up" in ended.err


# Measurements.


@pytest.mark.requirement("R10")
def test_a_throughput_bench_counts_every_row(shell: Shell) -> None:
    """How many it is says nothing here: the machine has other work. What makes it fast, tests/integration counts."""
    figures = shell.run("bench", "pub-sub", "--messages", "20000", "--batch", "500", "--json").object
    assert figures["published"] == 20000
    assert figures["received"] + figures["lost"] == 20000
    assert figures["rows_per_s"] > 0


@pytest.mark.long  # so does that of throughput
@pytest.mark.requirement("R11")
def test_a_fan_out_bench_counts_every_delivery(shell: Shell) -> None:
    figures = shell.run("bench", "fan-out", "--messages", "5000", "--subscribers", "3", "--json").object
    assert figures["received"] + figures["lost"] == 15000
    assert figures["received"] > 0


@pytest.mark.requirement("R10")
def test_a_latency_bench_gives_percentiles(shell: Shell) -> None:
    figures = shell.run("bench", "latency", "--messages", "300", "--rate", "500", "--json").object
    assert figures["received"] == 300
    assert 0 < figures["p50_us"] <= figures["p99_us"] <= figures["max_us"]


def test_a_bench_without_a_node_says_what_is_wrong(shell: Shell) -> None:
    bench = ("bench", "latency", "--url", "tcp://127.0.0.1:1", "--timeout", "0.5")
    assert shell.run(*bench, status=1).err.startswith("error 60003: ")
