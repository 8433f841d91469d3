"""Where a host of a pair listens for the other one: an address that it cannot have, a certificate that is renewed."""

from __future__ import annotations

import signal
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from cluster.security.authority import create_certificate
from tests.integration.lease_server import LeaseServer
from tests.integration.manual_pair import MANUAL, Host, acts_with, pair_of
from tests.ports import free_port
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 60.0


def certificate_at(port: int) -> str:
    """Give the certificate that is shown at a port."""
    return ssl.get_server_certificate(("127.0.0.1", port))


@pytest.mark.timeout(200)
@pytest.mark.requirement("R222")
def test_a_standby_shows_a_certificate_that_was_renewed_after_a_hangup(tmp_path: Path) -> None:
    """Else it shows the one of its start until that has ended, and no primary that connects anew follows."""
    (tmp_path / "keys").mkdir()
    first = create_certificate(tmp_path / "keys" / "node", ["127.0.0.1"])
    port = free_port()
    more = f'[router]\ntls_cert_file = "{first.cert_file}"\ntls_key_file = "{first.key_file}"'
    with pair_of(tmp_path) as (alpha, _):
        alpha.configure(listen=f"tls://127.0.0.1:{port}", more=more)
        alpha.up()
        before = certificate_at(port)
        create_certificate(tmp_path / "keys" / "next", ["127.0.0.1"])
        for kind in ("pem", "key"):
            (tmp_path / "keys" / f"next.{kind}").replace(tmp_path / "keys" / f"node.{kind}")
        assert certificate_at(port) == before
        alpha.signal(signal.SIGHUP)
        wait_for(
            lambda: certificate_at(port),
            lambda found: found != before,
            "the new one",
            LIMIT_S,
            more=alpha.log,
        )
        first.cert_file.write_text("no certificate")
        alpha.signal(signal.SIGHUP)
        alpha.wait_log("the one before stays")
        assert certificate_at(port) != before


@pytest.mark.timeout(200)
def test_a_host_that_cannot_listen_says_so_in_a_line(tmp_path: Path) -> None:
    def told(host: Host) -> str:
        return host.run("up", *host.where, is_done=False)

    with pair_of(tmp_path, MANUAL) as (alpha, _), socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        alpha.configure(listen=url)
        said = told(alpha)
        assert f"error 40902: In Use: standby.listen {url}" in said
        assert "Traceback" not in said


@pytest.mark.timeout(200)
@pytest.mark.requirement("R266")
def test_a_host_on_which_the_node_cannot_start_lets_the_other_one_be_the_primary_again(
    tmp_path: Path,
) -> None:
    with LeaseServer() as server, socket.create_server(("127.0.0.1", 0)) as taken:
        store = f'store = "kubernetes"\nendpoints = ["{server.url}"]\nnamespace = "n"'
        with pair_of(tmp_path, store) as (alpha, beta):
            beta.listen_for_clients(taken.getsockname()[1])
            alpha.up()
            alpha.wait(acts_with(["alpha"]), "the first primary")
            beta.up()
            alpha.wait(acts_with(["alpha", "beta"]), "the primary, with its standby")
            alpha.run("queue", "create", "q")
            alpha.run("pub", "q", "kept", "--queue")
            alpha.run("standby", "switch")
            beta.wait_log("another process listens")
            alpha.wait(lambda status: status["epoch"] == 3 and bool(status["acts"]), "the primary again")
            assert "kept" in alpha.run("consume", "q", "--count", "1", "--idle-timeout", "10")
