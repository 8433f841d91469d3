"""Events as syslog gets them: in the form of RFC 5424, harmless, and never in the way."""

from __future__ import annotations

import contextlib
import re
import socket
from typing import TYPE_CHECKING, Any

import pytest

from cluster.configuration.config import syslog_fault
from cluster.controller.syslog import MESSAGE_BYTES_MAX, Syslog, format_event

if TYPE_CHECKING:
    from pathlib import Path

#: <priority>version time host application process message-id [data] text.
FORM = re.compile(
    r'<(\d+)>1 (\S+) (\S+) angarium - (\S+) \[angarium@0 ((?:\w+="(?:[^"\\\]]|\\.)*" ?)*)\] (.*)', re.DOTALL
)
EVENT = {
    "id": 7,
    "time": "2031-05-04T10:11:12.345Z",
    "severity": "warning",
    "scope": "CLIENT",
    "event": "CLIENT_MAX_ELIDING_TOPIC",
    "text": "client c reached its maximum",
    "vpn": "default",
    "client": "c",
}


def taken_apart(**changes: Any) -> tuple[str, ...]:
    match = FORM.fullmatch(format_event({**EVENT, **changes}, "berlin").decode())
    assert match is not None
    return match.groups()


@pytest.mark.requirement("R42")
def test_an_event_has_the_form_of_rfc_5424() -> None:
    priority, time, host, name, data, text = taken_apart()
    assert int(priority) == 16 * 8 + 4, "local0, warning"
    assert (time, host, name) == (EVENT["time"], "berlin", EVENT["event"])
    assert data == 'id="7" scope="CLIENT" vpn="default" client="c"'
    assert text == EVENT["text"]


@pytest.mark.parametrize(
    ("severity", "number"),
    [("critical", 2), ("error", 3), ("warning", 4), ("notice", 5), ("info", 6), ("odd", 6)],
)
def test_each_severity_has_its_number(severity: str, number: int) -> None:
    assert int(taken_apart(severity=severity)[0]) % 8 == number


def test_what_a_client_chose_cannot_forge_a_line_or_end_the_data() -> None:
    *_, data, text = taken_apart(client='c"]\n<134>1 forged', text="a\nb\x1b[31m")
    assert 'client="c\\"\\]\\\\x0a<134>1 forged"' in data
    assert text == "a\\x0ab\\x1b[31m"


def test_a_name_that_is_too_long_for_its_field_is_told_in_the_text() -> None:
    *_, name, _, text = taken_apart(event="VPN_" * 20)
    assert len(name) == 32
    assert text.startswith("VPN_" * 20 + ": ")


def test_a_message_is_cut_where_receivers_may_cut_it() -> None:
    assert len(format_event({**EVENT, "text": "x" * 10_000}, "berlin")) == MESSAGE_BYTES_MAX


@pytest.mark.parametrize(
    "target", ["", "udp://log:514", "udp://10.0.0.1", "udp://[::1]:5140", "unix:///dev/log"]
)
def test_a_target_is_an_address_or_a_path(target: str) -> None:
    assert syslog_fault(target) == ""


@pytest.mark.parametrize(
    "target", ["log", "tcp://log:514", "udp://", "udp://log:99999", "unix://dev/log", "udp://a:b"]
)
def test_anything_else_is_refused_with_what_is_possible(target: str) -> None:
    assert "udp://HOST:PORT" in syslog_fault(target)


def test_events_arrive_at_a_server_over_udp() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        syslog = Syslog(f"udp://127.0.0.1:{server.getsockname()[1]}", "berlin")
        syslog.send(EVENT)
        assert server.recv(65_536) == format_event(EVENT, "berlin")
        syslog.close()
    assert syslog.lost == 0


def test_a_local_server_that_comes_back_gets_events_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    syslog = Syslog(f"unix://{path}", "berlin")
    syslog.send(EVENT)
    assert syslog.lost == 1
    for _ in range(2):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
            server.bind(str(path))
            server.settimeout(10)
            syslog.send(EVENT)
            assert server.recv(65_536).startswith(b"<132>1 ")
        path.unlink()
        lost = syslog.lost
        syslog.send(EVENT)
        assert syslog.lost == lost + 1
    syslog.close()


def test_the_first_event_reaches_a_local_server_that_was_restarted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    syslog: Syslog | None = None
    for _ in range(2):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
            server.bind(str(path))
            server.settimeout(10)
            syslog = syslog or Syslog(f"unix://{path}", "berlin")
            syslog.send(EVENT)
            assert server.recv(65_536) == format_event(EVENT, "berlin")
        path.unlink()
    assert syslog is not None
    assert syslog.lost == 0
    syslog.close()


def test_the_first_event_reaches_a_server_over_udp_that_was_restarted() -> None:
    """That nobody listened is told by the next datagram, which is not sent then."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        address = server.getsockname()
    syslog = Syslog(f"udp://127.0.0.1:{address[1]}", "berlin")
    syslog.send(EVENT)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(address)
        server.settimeout(10)
        syslog.send(EVENT)
        assert server.recv(65_536) == format_event(EVENT, "berlin")
    syslog.close()


def test_a_host_whose_name_was_not_known_at_the_start_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_up = socket.getaddrinfo

    def unknown(*_args: Any, **_options: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.05)
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        syslog = Syslog(f"udp://log.example:{server.getsockname()[1]}", "berlin")
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda _host, *more, **how: look_up("127.0.0.1", *more, **how)
        )
        for _ in range(200):
            syslog.send(EVENT)
            with contextlib.suppress(TimeoutError):
                assert server.recv(65_536) == format_event(EVENT, "berlin")
                break
        else:
            pytest.fail("nothing came")
        syslog.close()


def test_without_a_target_nothing_is_sent() -> None:
    syslog = Syslog("", "berlin")
    syslog.send(EVENT)
    assert syslog.lost == 0
