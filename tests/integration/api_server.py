"""An API server of Kubernetes for tests, where there is one: a real process on loopback, with an etcd of its own."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final, Self

import pytest

from tests.integration.etcd_servers import END_S, Etcd, needs_etcd
from tests.ports import free_port
from tests.waiting import wait_for

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from tests.integration.certificates import Authority, Pair

PROGRAM: Final = "kube-apiserver"
#: Of the one account that there is.
TOKEN: Final = "token-of-a-pod"
NAMESPACE: Final = "n"
#: The address of services in the cluster; nothing of it is used.
_SERVICES: Final = "10.0.0.0/24"


def needs_api_server() -> None:
    """Skip a test where there is none, or no etcd for it."""
    if shutil.which(PROGRAM) is None:
        pytest.skip(f"needs {PROGRAM} of Kubernetes in PATH")
    needs_etcd()


class Account:
    """How an account asks a server: its address, what it trusts, its token."""

    def __init__(self, url: str, token: str = "", context: ssl.SSLContext | None = None) -> None:
        self.url = url
        self.token = token
        self._context = context

    def with_token(self, token: str) -> Account:
        """Give who has another one."""
        return Account(self.url, token, self._context)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        """Give status and body of the answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20, context=self._context) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


class ApiServer:
    """One server with one namespace; use it as a context manager."""

    def __init__(self, folder: Path, authority: Authority, pair: Pair) -> None:
        self._folder = folder
        self._authority = authority
        self._pair = pair
        self._port = free_port()
        self._etcd = Etcd(folder)
        self._process: subprocess.Popen[bytes] | None = None
        #: What a pod has of its account.
        self.account_folder = folder / "account"

    def __enter__(self) -> Self:
        self.account_folder.mkdir()
        (self.account_folder / "ca.crt").write_bytes(self._authority.cert.read_bytes())
        (self.account_folder / "namespace").write_text(NAMESPACE)
        (self.account_folder / "token").write_text(TOKEN)
        tokens = self._folder / "tokens.csv"
        tokens.write_text(f'"{TOKEN}",pod,pod\n')
        self._etcd.__enter__()
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen([PROGRAM, *self._options(tokens)], stdout=log, stderr=log)
        wait_for(self._make_namespace, lambda status: status in (201, 409), "the API server serving")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(END_S)
        self._etcd.__exit__(kind, error, trace)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def account(self) -> Account:
        return Account(self.url, TOKEN, self._authority.client_context())

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Give no answers meanwhile."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _options(self, tokens: Path) -> list[str]:
        cert, key = self._pair
        return [
            f"--etcd-servers={','.join(self._etcd.urls)}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self._folder}",
            f"--tls-cert-file={cert}",
            f"--tls-private-key-file={key}",
            f"--token-auth-file={tokens}",
            "--anonymous-auth=false",
            "--authorization-mode=AlwaysAllow",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={cert}",
            f"--service-account-signing-key-file={key}",
            f"--service-cluster-ip-range={_SERVICES}",
        ]

    def _make_namespace(self) -> int:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        try:
            return self.account().ask("POST", "/api/v1/namespaces", namespace)[0]
        except OSError:
            return 0
