"""Webhooks: a webhook consumes a queue, and POSTs each of its messages to a URL (docs/webhooks.md).

What must not be seen is in files on the node's host, of which the object has the paths: objects are shown, exported,
and written down in the audit log.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from angarium import errors
from cluster.objects.attributes import DEFAULT_NAME, Text, level_pattern, level_rule, own
from cluster.objects.bridges import CA_CHARACTERS_MAX

#: A level of the name of its client.
WEBHOOK_NAME: Final = level_pattern(32)
WEBHOOK_RULE: Final = level_rule(32)
URL_CHARACTERS_MAX: Final = 2_048
HEADERS_MAX: Final = 50
CODES_MAX: Final = 50
#: The longest path that Linux takes.
_PATH_MAX: Final = 4_096
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
#: Names of headers that the webhook makes itself, or that are of the connection.
_TAKEN: Final = frozenset(
    (
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_TAKEN_PREFIXES: Final = ("webhook-", "angarium-")

_Code = Annotated[int, Meta(ge=300, le=599)]


class Webhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook: POSTs the messages of a queue to a URL."""

    enabled: Annotated[bool, own("Whether it consumes the queue.")] = True
    queue: Annotated[Text, own("Queue that it consumes.")] = ""
    username: Annotated[
        str,
        Meta(max_length=189),
        own(
            "Client username whose rights it has, without a password: it owns the queue, or its permission is consume."
        ),
    ] = DEFAULT_NAME
    url: Annotated[
        str,
        Meta(max_length=URL_CHARACTERS_MAX),
        own("Where messages are posted: https:// or http://; everybody who may see the webhook sees it."),
    ] = ""
    ca_pem: Annotated[
        str,
        Meta(max_length=CA_CHARACTERS_MAX),
        own("Authorities (PEM) that sign the certificate of the target; empty: those of the node's host."),
    ] = ""
    headers: Annotated[
        list[Text],
        Meta(max_length=HEADERS_MAX),
        own(
            "Headers of every request, each as NAME: VALUE; in place of that of the message with the same name."
        ),
    ] = []
    authorization_file: Annotated[
        str,
        Meta(max_length=_PATH_MAX),
        own("File on the node's host whose first line is the header Authorization; read for every request."),
    ] = ""
    secret_file: Annotated[
        str,
        Meta(max_length=_PATH_MAX),
        own(
            "File on the node's host with the secret of the signature (base64, with or without whsec_), or two, a line"
            " each; read for every request. Empty: nothing is signed."
        ),
    ] = ""
    window: Annotated[
        int,
        Meta(ge=1, le=1_000),
        own(
            "Requests at the same time, and messages that are taken and not done with. 1: one after the other."
        ),
    ] = 10
    timeout_ms: Annotated[
        int, Meta(ge=10, le=300_000), own("Time for a request, from its name being looked up to the answer.")
    ] = 10_000
    retry_delay_initial_ms: Annotated[
        int,
        Meta(ge=10, le=3_600_000),
        own("Delay before the second attempt; doubled by each, of which half is random."),
    ] = 1_000
    retry_delay_max_ms: Annotated[
        int, Meta(ge=10, le=86_400_000), own("Longest delay, also if Retry-After asks for more.")
    ] = 300_000
    max_attempts: Annotated[
        int,
        Meta(ge=0, le=1_000_000),
        own("Attempts after which a message is rejected, to the dead message queue; 0: without a limit."),
    ] = 0
    permanent_codes: Annotated[
        list[_Code],
        Meta(max_length=CODES_MAX),
        own("Codes of answers that reject a message at once, as 410 does."),
    ] = []


def check_url(where: str, text: str) -> None:
    """Refuse what is no URL to post to, and one that holds a password: it is shown.

    Raises:
        InvalidRequestError: so it is (40015).
    """
    if not text:
        return
    try:
        parts = urlsplit(text)
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_sound = False
    if not is_sound or not text.isascii() or not text.isprintable() or " " in text:
        raise _unfit(where, f"{text!r} is no URL: write https://HOST/PATH, or http://")
    if "@" in parts.netloc:
        raise _unfit(where, "a URL is shown: name and password belong into authorization_file")
    host = (parts.hostname or "").rstrip(".")
    if host.rpartition(".")[2].isdigit() and not _is_ipv4(host):
        raise _unfit(where, f"{text!r}: an IPv4 address is four numbers, as in 192.0.2.1")
    if parts.fragment:
        raise _unfit(where, f"{text!r}: what stands behind # is never sent")


def _is_ipv4(host: str) -> bool:
    """Whether it is one as everybody writes it: who takes 127.1 or 0177.0.0.1 for one takes it for different ones."""
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True


def check_header(where: str, text: str) -> None:
    """Refuse what is no header, or one that is not to be set.

    Raises:
        InvalidRequestError: so it is (40015).
    """
    name, colon, value = text.partition(":")
    low = name.lower()
    if not colon or _TOKEN.fullmatch(name) is None or _VALUE.fullmatch(value.strip()) is None:
        raise _unfit(where, f"{name[:100]!r}: a header is written as NAME: VALUE")
    if low == "authorization":
        raise _unfit(where, "headers are shown: Authorization belongs into authorization_file")
    if low in _TAKEN or low.startswith(_TAKEN_PREFIXES):
        raise _unfit(where, f"{name!r} is set by the webhook")


def check_webhook(attributes: dict[str, Any]) -> None:
    """Refuse a webhook that has nothing to post, nowhere to go, or that tells others what is secret.

    Raises:
        InvalidRequestError: so it is (40015).
    """
    for name in ("queue", "url"):
        if not attributes[name]:
            raise _unfit("webhook", f"set {name}")
    if attributes["retry_delay_max_ms"] < attributes["retry_delay_initial_ms"]:
        raise _unfit("webhook", "retry_delay_max_ms is at least retry_delay_initial_ms")
    target = urlsplit(attributes["url"])
    is_here = target.hostname in ("localhost", "127.0.0.1", "::1")
    if attributes["authorization_file"] and target.scheme != "https" and not is_here:
        raise _unfit("webhook", "authorization_file is sent over https:// alone")


def _unfit(where: str, what: str) -> errors.AngariumError:
    return errors.error_for(errors.INVALID_ATTRIBUTE, f"{where}: {what}")
