"""The `[[issuers]]` of the configuration: whose tokens are taken, and what their claims choose."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from angarium_server.configuration import about, within

#: Signatures with a public key only: whoever knows the key of an HMAC can make tokens, and `none` is no signature.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_Claim = Annotated[str, Meta(max_length=200)]
_Name = Annotated[str, Meta(min_length=1, max_length=200)]
#: Where nobody is on the way.
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
#: Issuers of one node.
ISSUERS_MAX: Final = 20


class TokenIssuer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Somebody whose tokens (JWT) clients may log in with."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
            description="Name of the issuer in events and metrics.",
        ),
    ]
    issuer: Annotated[_Name, about("What the claim iss says, letter by letter.")]
    audience: Annotated[
        list[_Name], Meta(min_length=1, max_length=20, description="The claim aud names one of these.")
    ]
    keys_file: Annotated[str, about("Its public keys: a JWKS, or keys and certificates in PEM.")] = ""
    jwks_url: Annotated[
        str,
        Meta(
            max_length=2_000,
            description="Address of its JWKS instead of a file: https, or http on this host.",
        ),
    ] = ""
    ca_file: Annotated[
        str, about("Authorities that may sign the certificate of that address (PEM); empty: of the system.")
    ] = ""
    refresh_s: Annotated[int, within(10, 604_800, "How often the address is asked.")] = 3_600
    refresh_min_s: Annotated[
        int, within(1, 3_600, "The same for tokens of an unknown key: never sooner after the last time.")
    ] = 30
    timeout_s: Annotated[int, within(1, 60, "How long the address may take to answer.")] = 5
    algorithms: Annotated[
        list[Algorithm], Meta(min_length=1, description="Signatures that are taken; public keys only.")
    ] = msgspec.field(default_factory=lambda: ["RS256", "PS256", "ES256", "EdDSA"])
    clock_skew_s: Annotated[
        int, within(0, 300, "By how much clocks may differ, at both ends of a token's time.")
    ] = 30
    vpns: Annotated[
        list[_Name], Meta(min_length=1, description='Message VPNs that its tokens may join; "*": all.')
    ] = msgspec.field(default_factory=lambda: ["default"])
    vpn_claim: Annotated[
        _Claim, about("Claim with the Message VPN, or a list of them; empty: the client chooses.")
    ] = ""
    username_claim: Annotated[_Claim, Meta(min_length=1, description="Claim with the client username.")] = (
        "sub"
    )
    client_profile_claim: Annotated[
        _Claim, about("Claim with the client profile; empty, or not there: that of the username.")
    ] = ""
    acl_profile_claim: Annotated[
        _Claim, about("Claim with the ACL profile; empty, or not there: that of the username.")
    ] = ""
    unknown_usernames: Annotated[
        bool, about("Whether a username that does not exist may log in, with these two profiles.")
    ] = False
    client_profile: Annotated[str, about("Client profile of usernames that do not exist.")] = "default"
    acl_profile: Annotated[str, about("ACL profile of usernames that do not exist.")] = "default"


def faults_of(issuers: list[TokenIssuer]) -> list[str]:
    """Give what does not fit among several."""
    faults = []
    if len(issuers) > ISSUERS_MAX:
        faults.append(f"issuers: there are {len(issuers)}, the limit is {ISSUERS_MAX}")
    for attribute in ("name", "issuer"):
        seen: set[str] = set()
        for one in issuers:
            value = getattr(one, attribute)
            if value in seen:
                faults.append(f"issuers: two have the {attribute} {value!r}")
            seen.add(value)
    for one in issuers:
        faults += [f"issuers {one.name!r}: {fault}" for fault in _source_faults(one)]
    return faults


def _source_faults(issuer: TokenIssuer) -> list[str]:
    if bool(issuer.keys_file) == bool(issuer.jwks_url):
        return ["write keys_file or jwks_url, one of them"]
    if issuer.jwks_url and (fault := address_fault(issuer.jwks_url)):
        return [f"jwks_url: {fault}"]
    return []


def address_fault(address: str) -> str:
    """Say what is wrong with an address of an issuer, nothing if it is one."""
    try:
        url = urlsplit(address)
        host, _ = url.hostname, url.port
    except ValueError as error:
        return str(error)
    if url.scheme not in ("https", "http") or not host or url.username or not address.isprintable():
        return "write https://HOST/PATH"
    if url.scheme == "http" and host not in _LOOPBACK:
        return f"{host} is another host, and whoever is on the way could give keys: write https://"
    return ""
