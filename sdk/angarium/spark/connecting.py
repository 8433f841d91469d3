"""What connects readers and writers to a node, and says in the words of options what the node refuses.

Queues that are named are opened for a query here; what is decided about them is in `angarium.spark.planning`.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from angarium import blocking, errors
from angarium.spark.options import invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from angarium.client.connection.connection import ClientEvent
    from angarium.spark.options import Settings

#: Which option is to blame for an error of the node; the others name what they are about themselves.
_BLAMED: Final = {
    errors.CONNECT_FAILED: "url",
    errors.TLS_FAILED: "url",
    errors.UNAUTHORIZED: "username",
    errors.USERNAME_SHUTDOWN: "username",
    errors.VPN_NOT_ALLOWED: "vpn",
    errors.VPN_UNAVAILABLE: "vpn",
    errors.HANDSHAKE_FAILED: "url",
    errors.CLIENT_CONNECT_DENIED: "username",
    errors.GUARANTEED_SEND_DENIED: "username",
    errors.GUARANTEED_RECEIVE_DENIED: "username",
    errors.ENDPOINT_CREATE_DENIED: "topics",
    errors.SUBSCRIBE_DENIED: "topics",
    errors.INVALID_FILTER: "topics",
    errors.INVALID_SELECTOR: "selector",
    errors.UNKNOWN_ENDPOINT: "queue",
    errors.PERMISSION_DENIED: "queue",
    errors.INVALID_ENDPOINT_NAME: "queue",
    errors.INVALID_DURABILITY: "queue",
    errors.QUEUE_UNFIT: "queue",
    errors.ENDPOINT_SHUTDOWN: "queue",
    errors.ENDPOINT_LEASED: "group",
    errors.LEASE_LOST: "group",
}
_QUEUE_PREFIX: Final = "spark/"
_DIGEST_CHARACTERS: Final = 12


@contextmanager
def blaming(settings: Settings, queue: str | None = None) -> Iterator[None]:
    """Have the errors of what is done inside name the option that is to blame, and the queue.

    Raises:
        AngariumError: what was raised inside, with the same code.
    """
    try:
        yield
    except errors.AngariumError as error:
        option = _BLAMED.get(error.code)
        if option is None or error.detail.startswith("option "):
            raise
        if option == "username":
            option = settings.login
        is_of_queue = queue is not None and option in ("queue", "group")
        shown = f"queue {queue!r}" if is_of_queue else _shown(settings, option)
        detail = f"option {option}: {shown}: {error.detail or error.text}"
        raise errors.error_for(error.code, detail, error.advice) from None


def open_client(settings: Settings, on_event: Callable[[ClientEvent], None] | None = None) -> blocking.Client:
    """Connect as the options say.

    Raises:
        AngariumError: the node refuses, or nobody answers; the text names the option that is to blame.
    """
    arguments: dict[str, Any] = {
        "vpn": settings["vpn"],
        "username": settings["username"],
        "password": settings.secret(),
        "token": settings.token(),
        "ca_file": settings["caFile"],
        "cert_file": settings["certFile"],
        "key_file": settings["keyFile"],
        "timeout_s": settings["timeoutSeconds"],
        "retry_for_s": settings["retrySeconds"],
    }
    with blaming(settings):
        return blocking.connect(settings["url"], on_event=on_event, **arguments)


def queues_of(settings: Settings) -> tuple[str, ...]:
    """Give the queues that a stream reads: those that are named, or the one that is made for topic filters.

    Raises:
        InvalidRequestError: neither is given, or several queues for topic filters (INVALID_ARGUMENT).
    """
    named: tuple[str, ...] = settings["queue"] or ()
    topics: tuple[str, ...] = settings["topics"] or ()
    if not topics and not named:
        raise invalid("queue", "it is missing; name queues, or topic filters by option topics")
    if topics and len(named) > 1:
        raise invalid("queue", f"{len(named)} are given; with option topics it names the one queue to make")
    return named or (queue_for(topics, settings["username"]),)


def queue_for(topics: Sequence[str], username: str) -> str:
    """Give the name of the queue for topic filters: the same for the same user and filters, in any order."""
    digest = hashlib.sha256("\n".join([username, *sorted(topics)]).encode()).hexdigest()
    return _QUEUE_PREFIX + digest[:_DIGEST_CHARACTERS]


def _shown(settings: Settings, option: str) -> str:
    if option == "token":
        return "it"  # a secret
    value: Any = settings.values.get(option)
    return ", ".join(value) if isinstance(value, tuple) else str(value)
