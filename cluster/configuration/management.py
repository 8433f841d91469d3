"""The sections `[management]` and `[oidc]` of the configuration: where `/api/v1` is, and how operators log in there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from angarium_server.configuration import about, within
from angarium_server.tokens.config import Algorithm, address_fault
from cluster.configuration import listening
from cluster.configuration.encryption import ca_file_faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.connections.tls import TlsFiles
    from angarium_server.tokens.config import TokenIssuer
    from router.ground.config import RouterConfig


class ManagementSection(listening.ListeningSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The management API over HTTP: where operators come in, and what they may cost."""

    tls_client_ca_file: Annotated[
        str, about("Authorities that may sign certificates of operators (PEM).")
    ] = ""
    tls_client_certificates: Annotated[
        Literal["none", "optional", "required"],
        about(
            "Whether who connects to https:// shows a certificate: none, optional or required; it says which operator"
            " asks, by certificate_name."
        ),
    ] = "none"
    token_issuers: Annotated[
        list[str],
        about(
            "Names of [[issuers]] whose tokens (JWT) operators may log in with, by their token_subject; empty: none."
        ),
    ] = msgspec.field(default_factory=list)
    token_audience: Annotated[
        list[str],
        about("The claim aud of these tokens names one of these; empty: what the issuer has for clients."),
    ] = msgspec.field(default_factory=list)
    token_claim: Annotated[
        str, Meta(min_length=1, max_length=200, description="Claim that is the token_subject of an operator.")
    ] = "sub"  # noqa: S105 - the name of a claim
    max_body_bytes: Annotated[int, within(1024, 64 << 20, "Largest body of a request.")] = 8 << 20
    max_connections: Annotated[
        int, within(1, 100_000, "Open connections; one more closes the one that is idle for longest.")
    ] = 500
    max_connections_per_address: Annotated[
        int, within(1, 100_000, "The same from one address (IPv6: a /64); one more is closed at once.")
    ] = 200
    max_streams: Annotated[
        int, within(1, 10_000, "Open streams of events and of jobs, of all operators together.")
    ] = 200
    max_streams_per_operator: Annotated[int, within(1, 10_000, "The same of one operator.")] = 20
    request_timeout_ms: Annotated[
        int, within(100, 600_000, "Time for a TLS handshake, and for a whole request to arrive.")
    ] = 10_000


class OidcSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Logins of operators in the browser by OpenID Connect; management.public_url has to be set."""

    issuer: Annotated[
        str,
        Meta(
            max_length=200, description="Whom to ask, as the claim iss of its tokens says it; empty: nobody."
        ),
    ] = ""
    client_id: Annotated[str, Meta(max_length=200, description="What the issuer calls this node.")] = ""
    client_secret_file: Annotated[
        str,
        about("File whose first line is the secret of that client; empty: it has none, and PKCE is enough."),
    ] = ""
    scopes: Annotated[
        list[Annotated[str, Meta(pattern="^[!#-\\[\\]-~]{1,100}$")]],
        Meta(max_length=20, description="What is asked for; openid is among it."),
    ] = msgspec.field(default_factory=lambda: ["openid"])
    operator_claim: Annotated[
        str, Meta(min_length=1, max_length=200, description="Claim that is the token_subject of an operator.")
    ] = "sub"
    label: Annotated[
        str, Meta(min_length=1, max_length=64, description="What the button of the console says.")
    ] = "Single sign-on"
    ca_file: Annotated[
        str, about("Authorities that may sign the certificate of the issuer (PEM); empty: of the system.")
    ] = ""
    algorithms: Annotated[
        list[Algorithm], Meta(min_length=1, description="Signatures that are taken; public keys only.")
    ] = msgspec.field(default_factory=lambda: ["RS256", "PS256", "ES256", "EdDSA"])
    clock_skew_s: Annotated[int, within(0, 300, "By how much clocks may differ.")] = 30
    timeout_s: Annotated[int, within(1, 60, "How long the issuer may take to answer.")] = 5


def oidc_faults_of(oidc: OidcSection, section: ManagementSection) -> list[str]:
    """Give what is wrong with the section `[oidc]`, as sentences."""
    if not oidc.issuer:
        return ["oidc.issuer: it is missing"] if oidc.client_id else []
    faults = []
    if fault := address_fault(oidc.issuer):
        faults.append(f"oidc.issuer: {fault}")
    if not oidc.client_id:
        faults.append("oidc.client_id: it is missing: the issuer says it when the node is made known to it")
    if "openid" not in oidc.scopes:
        faults.append("oidc.scopes: openid is missing")
    if not section.public_url:
        faults.append("oidc.issuer: it sends browsers back to the node: write management.public_url")
    return faults + ca_file_faults("oidc.ca_file", oidc.ca_file)


def faults_of(
    section: ManagementSection, router: RouterConfig, issuers: Sequence[TokenIssuer] = ()
) -> list[str]:
    """Give what is wrong with the section, as sentences."""
    known = [one.name for one in issuers]
    faults = [
        f"management.token_issuers: no [[issuers]] has the name {name!r}"
        for name in section.token_issuers
        if name not in known
    ]
    faults += listening.faults_of("management", section, router)
    faults += ca_file_faults("management.tls_client_ca_file", section.tls_client_ca_file)
    if section.tls_client_certificates != "none" and not section.tls_client_ca_file:
        faults.append(
            "management.tls_client_certificates: they can be checked with a file of authorities only: write"
            " management.tls_client_ca_file"
        )
    return faults


def files_of(section: ManagementSection, router: RouterConfig) -> TlsFiles:
    """Give the files that encrypt `https://` addresses, and those by which certificates of operators are checked."""
    own = listening.files_of(section, router)
    return own._replace(
        ca_file=section.tls_client_ca_file, client_certificates=section.tls_client_certificates
    )
