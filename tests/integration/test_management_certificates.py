"""Operators who come in with a certificate: whose counts, whose does not, and what is written down of it."""

from __future__ import annotations

import shutil
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from angarium import errors
from cluster.commands import cli
from tests.integration.certificates import Authority, Pair
from tests.integration.http_api import Api, basic, logins, managed_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from angarium_server.testing import Node

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R258")]

CONFIG = """
[management]
tls_cert_file = "{pair.cert}"
tls_key_file = "{pair.key}"
tls_client_ca_file = "{ca}"
tls_client_certificates = "{mode}"
"""


class Place(NamedTuple):
    """A node, who signs its certificate, and who signs those of operators."""

    node: Node
    authority: Authority
    signer: Authority
    #: Authorities of operators, as the node reads them.
    file: Path

    def api(self, pair: Pair | None = None) -> Api:
        context = self.authority.client_context()
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        return Api(self.node.management_url, context=context)

    def me(self, pair: Pair | None = None, **headers: str) -> Any:
        """Ask who it is, over a connection of its own."""
        api = self.api(pair)
        try:
            answer = api.ask_without("/api/v1/me") if not headers else api.get("/me", **headers)
            return answer.value["name"] if answer.status == 200 else answer.code
        finally:
            api.close()

    def way(self, pair: Pair) -> list[str]:
        """Give the options of a command that takes this way."""
        files = ["--ca-file", str(self.authority.cert), "--cert-file", str(pair.cert)]
        return ["--management", self.node.management_url, *files, "--key-file", str(pair.key)]


@pytest.fixture(scope="module", params=["optional", "required"])
def place(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp(request.param)
    authority, signer = Authority(folder / "authority"), Authority(folder / "signer")
    file = folder / "operators-ca.pem"
    shutil.copy(signer.cert, file)
    config = CONFIG.format(pair=authority.issue("node"), ca=file, mode=request.param)
    with managed_node(folder, config, "https://127.0.0.1:0") as node:
        made = ("operator", "create", "anna", "--set", "certificate_name=Anna A", "--set", "role=operator")
        node.run(*made)
        node.run("operator", "create", "ben", "--set", "certificate_name=ben", "--set", "enabled=false")
        yield Place(node, authority, signer, file)


@pytest.mark.requirement("R259")
def test_a_certificate_says_which_operator_asks(place: Place) -> None:
    anna = place.signer.issue("Anna A")
    assert place.me(anna) == "anna"
    assert place.me(anna) == "anna"
    assert place.me(anna, Authorization=basic("viewer")) == "viewer", "who says a name is that one"
    assert place.me(anna, Authorization=basic("viewer", "wrong")) == errors.UNAUTHORIZED
    (entry,) = [one for one in logins(place.node) if one["who"] == "anna"]
    assert entry["asked"] == {"method": "certificate", "subject": "Anna A"}
    assert (entry["outcome"], entry["address"]) == ("done", "127.0.0.1")


@pytest.mark.parametrize("name", ["nobody", "ben", "anna", "anna a"])
def test_a_certificate_of_nobody_who_may_come_in_is_refused(place: Place, name: str) -> None:
    """`anna` is an operator, but no `certificate_name`."""
    before = len(logins(place.node))
    stranger = place.signer.issue(name)
    assert place.me(stranger) == errors.UNAUTHORIZED
    (entry,) = logins(place.node)[before:]
    assert (entry["outcome"], entry["who"], entry["asked"]["method"]) == (
        errors.UNAUTHORIZED,
        "",
        "certificate",
    )


def test_a_certificate_of_another_authority_does_not_come_in(place: Place) -> None:
    for one in (place.authority.issue("Anna A"), place.signer.issue("Anna A", until="20210101000000Z")):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            place.me(one)


def test_without_a_certificate_it_is_as_the_configuration_says(
    place: Place, request: pytest.FixtureRequest
) -> None:
    mode = request.node.callspec.params["place"]
    if mode == "optional":
        assert place.me() == errors.UNAUTHORIZED
        assert place.me(Authorization=basic("viewer")) == "viewer"
    else:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            place.me(Authorization=basic("viewer"))


def test_a_command_shows_a_certificate(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    anna = place.signer.issue("Anna A")
    assert cli.run(["queue", "list", *place.way(anna)]) == 0
    capsys.readouterr()
    assert cli.run(["queue", "list", *place.way(place.authority.issue("Anna A"))]) == 1
    told = capsys.readouterr().err
    assert f"error {errors.TLS_FAILED}" in told or f"error {errors.CONNECT_FAILED}" in told
    wrong = anna._replace(key=place.signer.issue("other").key)
    assert cli.run(["queue", "list", *place.way(wrong)]) == 1
    assert "--cert-file" in capsys.readouterr().err


def test_other_authorities_count_after_a_reload(place: Place) -> None:
    anna, other = place.signer.issue("Anna A"), place.authority.issue("Anna A")
    before = place.file.read_bytes()
    shutil.copy(place.authority.cert, place.file)
    try:
        place.node.run("keys", "reload")
        assert place.me(other) == "anna"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            place.me(anna)
    finally:
        place.file.write_bytes(before)
        place.node.run("keys", "reload")
    assert place.me(anna) == "anna"


def test_who_is_disabled_is_refused_over_a_connection_that_is_there(place: Place) -> None:
    place.node.run("operator", "create", "carl", "--set", "certificate_name=carl")
    api = place.api(place.signer.issue("carl"))
    assert api.ask_without("/api/v1/me").status == 200
    place.node.run("operator", "delete", "carl", "--yes")
    assert api.ask_without("/api/v1/me").code == errors.UNAUTHORIZED
    api.close()


@pytest.mark.requirement("R259")
def test_a_page_logs_in_with_the_certificate_of_its_browser(place: Place) -> None:
    place.node.run("operator", "create", "dora", "--set", "certificate_name=dora")
    api = place.api(place.signer.issue("dora"))
    before = len(logins(place.node))
    answer = api.ask_without("/api/v1/login/certificate", "POST")
    assert (answer.value["operator"], answer.value["method"]) == ("dora", "certificate")
    cookie = answer.headers["Set-Cookie"]
    assert all(part in cookie for part in ("__Host-angarium", "Secure", "HttpOnly", "SameSite=Strict"))
    (entry,) = logins(place.node)[before:]
    assert (entry["who"], entry["asked"]["method"]) == ("dora", "certificate")
    said = {"Cookie": cookie.partition(";")[0]}
    assert api.ask_without("/api/v1/login", **said).value["token"] == answer.value["token"]
    assert api.ask_without("/api/v1/logout", "POST", **said).code == errors.CROSS_ORIGIN, "without its token"
    apis = [place.api(place.signer.issue("dora")) for _ in range(2)]
    streams = [
        one.opened("/api/v1/events?event=VPN_*", **told) for one, told in zip(apis, (said, {}), strict=True)
    ]
    place.node.run("operator", "update", "dora", "--set", "certificate_name=other")
    for stream in streams:
        assert f'"code":{errors.UNAUTHORIZED}'.encode() in stream.read(), "a stream ends by itself"
    for one in apis:
        one.close()
    assert api.ask_without("/api/v1/login", **said).code == errors.UNAUTHORIZED
    refused = api.ask_without("/api/v1/login/certificate", "POST")
    assert (refused.code, "Basic" in refused.headers["WWW-Authenticate"]) == (errors.UNAUTHORIZED, False)
    foreign = api.ask_without("/api/v1/login/certificate", "POST", Origin="https://evil.example")
    assert foreign.code == errors.CROSS_ORIGIN
    api.close()
