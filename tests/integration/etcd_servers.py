"""etcd for tests: members on loopback, each a real process with its own directory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import pytest

from tests.ports import free_port
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from tests.integration.certificates import Pair

END_S: Final = 20.0
#: Of an election; the shortest lease that etcd grants is one and a half of it.
ELECTION_MS: Final = 1_000


def needs_etcd() -> None:
    """Skip a test where there is no etcd."""
    if shutil.which("etcd") is None:
        pytest.skip("needs etcd: apt-get install etcd-server")


class Tls(NamedTuple):
    """What a member has that talks to clients with certificates only."""

    server: Pair
    client: Pair
    ca_file: Path


class Member:
    """One member of a cluster."""

    def __init__(self, folder: Path, name: str, tls: Tls | None) -> None:
        self.name = name
        self.port, self.peer_port = free_port(), free_port()
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._folder = folder
        self.peer = f"{name}=http://127.0.0.1:{self.peer_port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, peers: str) -> None:
        peer_url = f"http://127.0.0.1:{self.peer_port}"
        command = ["etcd", "--name", self.name, "--data-dir", str(self._folder / self.name)]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url]
        command += ["--initial-cluster", peers, "--election-timeout", str(ELECTION_MS)]
        if self._tls is not None:
            command += ["--cert-file", str(self._tls.server.cert), "--key-file", str(self._tls.server.key)]
            command += ["--client-cert-auth", "--trusted-ca-file", str(self._tls.ca_file)]
            self._context = ssl.create_default_context(cafile=self._tls.ca_file)
            self._context.load_cert_chain(self._tls.client.cert, self._tls.client.key)
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def is_up(self) -> bool:
        return self._process is not None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGSTOP:  # which takes its time while other processes want to run
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_S)
            self._process = None

    def post(self, path: str, body: dict[str, Any], token: str = "") -> Any:
        headers = {"Authorization": token} if token else {}
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method="POST")
        with urllib.request.urlopen(request, timeout=5, context=self._context) as answer:
            return json.loads(answer.read())

    @property
    def is_serving(self) -> bool:
        """Tell whether it has a leader: it answers a read that a majority confirms."""
        try:
            return "header" in self.post("/v3/kv/range", {"key": "YQ=="})
        except urllib.error.HTTPError as error:
            return error.code == 403  # it wants to know who asks
        except OSError:
            return False

    @property
    def is_leader(self) -> bool:
        status = self.post("/v3/maintenance/status", {})
        return bool(status["leader"] == status["header"]["member_id"])


class Etcd:
    """A cluster; use it as a context manager."""

    def __init__(self, folder: Path, members: int = 1, tls: Tls | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.members = [Member(folder, f"m{number}", tls) for number in range(members)]
        self._peers = ",".join(member.peer for member in self.members)

    def __enter__(self) -> Self:
        for member in self.members:
            member.start(self._peers)
        wait_for(lambda: [member.is_serving for member in self.members], all, "each member of etcd serving")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.kill()

    @property
    def urls(self) -> list[str]:
        return [member.url for member in self.members]

    def restart(self, member: Member) -> None:
        member.start(self._peers)
        wait_for(lambda: member.is_serving, bool, f"etcd {member.name} serving")

    def leader(self) -> Member:
        """Give the member that is the leader."""

        def found() -> list[Member]:
            with contextlib.suppress(OSError):
                return [member for member in self.members if member.is_up and member.is_leader]
            return []

        return wait_for(found, lambda leaders: len(leaders) == 1, "one leader of etcd")[0]
