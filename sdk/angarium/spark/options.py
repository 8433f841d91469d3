"""The options of `format("angarium")`: one table for reader and writer, and what checks a user's against it.

Spark hands options over as texts with lower-case names; here they get their names and types back. Everything that is
wrong with them is found before anything is connected, and named: an unknown option with those that are spelled nearly
like it, a value with what is possible. A secret appears in no text that this module makes: not in `repr`, not in an
error.

Who adds an option adds a row to `OPTIONS`; `docs/spark.md` has the same table and a test compares the two.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from angarium.client.connecting import CONNECT_TIMEOUT_S
from angarium.client.consuming.reader_group import LEASE_S, LEASE_S_MAX, LEASE_S_MIN
from angarium.client.transport.address import DEFAULT_URL
from angarium.errors import documented
from angarium.spark.schema import NAMES, check_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: What an option is for.
BATCH: Final = "read"
STREAM: Final = "readStream"
WRITE: Final = "write"
STREAM_WRITE: Final = "writeStream"
_READS: Final = frozenset({BATCH, STREAM})
_WRITES: Final = frozenset({WRITE, STREAM_WRITE})
_ALL: Final = _READS | _WRITES

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

#: An explicit limit per batch bounds what a driver plans; beyond is a mistake of units.
_NUMBER_MAX: Final = 1 << 53
#: How near the name of an option must be to be suggested, as difflib counts.
_NEAR: Final = 0.6
_SHOWN_MAX: Final = 60


class _WrongError(ValueError):
    """A text that is not possible, with a reason that helps."""


class Kind(NamedTuple):
    """How the text of an option becomes its value."""

    #: What is possible, for errors and documentation.
    what: str
    #: Raises ValueError for a text that is not possible.
    read: Callable[[str], Any]


def _boolean(text: str) -> bool:
    known = {"true": True, "false": False}
    if text.strip().lower() not in known:
        raise ValueError
    return known[text.strip().lower()]


def _number(kind: type[int] | type[float], least: float, most: float = _NUMBER_MAX) -> Callable[[str], float]:
    def read(text: str) -> float:
        number = kind(text)
        if not least <= number <= most:
            raise ValueError
        return number

    return read


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text.strip()


def list_text(names: Iterable[str]) -> str:
    """Give names as the text of an option that is a list, whatever is in them."""
    return json.dumps(list(names))


def _list(text: str) -> tuple[str, ...]:
    """Give names; a topic filter may hold a comma, so that a JSON array is possible, too."""
    if text.lstrip().startswith("["):
        given = json.loads(text)
        names = tuple(name if isinstance(name, str) else "" for name in given)
    else:
        names = tuple(name.strip() for name in text.split(","))
    if not names or not all(names):
        raise ValueError
    if len(set(names)) < len(names):
        raise _WrongError("one is given twice")
    return names


def _columns(text: str) -> tuple[str, ...]:
    names = _list(text)
    try:
        check_names(list(names))
    except errors.AngariumError as error:
        raise _WrongError(error.detail) from None
    return names


def _start(text: str) -> str | int:
    """Give `earliest`, `latest`, or the ms since 1970 of a time; a time without zone is UTC."""
    text = text.strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _choice(*possible: str) -> Kind:
    def read(text: str) -> str:
        if text.strip().lower() not in possible:
            raise ValueError
        return text.strip().lower()

    return Kind(" or ".join(f"`{one}`" for one in possible), read)


TEXT: Final = Kind("a text", _text)
SECRET: Final = Kind("a secret", lambda text: text)
FILE: Final = Kind("a file", _text)
LIST: Final = Kind("names, separated by commas or as a JSON array", _list)
COLUMNS: Final = Kind("columns, separated by commas", _columns)
NATURAL: Final = Kind("a whole number from 1", _number(int, 1))
COUNT: Final = Kind("a whole number from 0", _number(int, 0))
SECONDS: Final = Kind("a number of seconds above 0", _number(float, math.ulp(0.0)))
BOOLEAN: Final = Kind("`true` or `false`", _boolean)
LEASE: Final = Kind(
    f"a number of seconds from {LEASE_S_MIN:g} to {LEASE_S_MAX:.0f}", _number(float, LEASE_S_MIN, LEASE_S_MAX)
)
START: Final = Kind("`earliest`, `latest` or a time such as `2026-03-01T12:00:00Z`", _start)
KIND: Final = _choice("queue", "topic-endpoint")
DELIVERY: Final = _choice("exactly-once", "at-least-once", "direct")


class Option(NamedTuple):
    """One row of the table."""

    name: str
    kind: Kind
    #: The value if it is not given; None for none.
    default: Any
    uses: frozenset[str]
    #: One sentence, for the documentation.
    what: str


OPTIONS: Final = (
    Option("url", LIST, (DEFAULT_URL,), _ALL, "the node, or several addresses that are tried in turn"),
    Option("vpn", TEXT, "default", _ALL, "the Message VPN"),
    Option("username", TEXT, "default", _ALL, "who connects"),
    Option("password", SECRET, None, _ALL, "the secret of the username"),
    Option("passwordFile", FILE, None, _ALL, "a file with the secret, on every machine that connects"),
    Option("passwordEnv", TEXT, None, _ALL, "an environment variable with the secret, on every machine"),
    Option("token", SECRET, None, _ALL, "a token (JWT) instead of a password; it is not renewed"),
    Option(
        "tokenFile", FILE, None, _ALL, "a file with it, read again for each connection and renewal, likewise"
    ),
    Option("caFile", FILE, None, _ALL, "authorities of a `tls://` address, a file on every host of the job"),
    Option("certFile", FILE, None, _ALL, "certificate of the job, where one is demanded, likewise"),
    Option("keyFile", FILE, None, _ALL, "private key of `certFile`, likewise"),
    Option("timeoutSeconds", SECONDS, CONNECT_TIMEOUT_S, _ALL, "how long each call waits for the node"),
    Option("retrySeconds", SECONDS, 60.0, _ALL, "how long a lost connection is tried again before it fails"),
    Option("queue", LIST, None, _ALL, "the queues to read, or the one queue to write to"),
    Option("topic", TEXT, None, _WRITES, "the topic of all rows, whatever the column `topic` says"),
    Option("delivery", DELIVERY, "exactly-once", _WRITES, "how rows are given to the node"),
    Option("sinkId", TEXT, None, _WRITES, "a name for who writes, before the id of the query"),
    Option("batchId", COUNT, None, frozenset({WRITE}), "which batch of `sinkId` a data frame is"),
    Option(
        "checkpointLocation",
        TEXT,
        None,
        frozenset({STREAM_WRITE}),
        "Spark's own: where a query keeps its place",
    ),
    Option("queryName", TEXT, None, frozenset({STREAM_WRITE}), "Spark's own: what the query is called"),
    Option("kind", KIND, "queue", frozenset({BATCH}), "what `queue` names"),
    Option("columns", COLUMNS, NAMES, _READS, "the columns to build; what is not named costs nothing"),
    Option("selector", TEXT, None, frozenset({BATCH}), "which messages to read, beside filters of Spark's"),
    Option("topics", LIST, None, frozenset({STREAM}), "topic filters, for which a durable queue is made"),
    Option("group", TEXT, None, frozenset({STREAM}), "the reader group that leases the queues"),
    Option("leaseSeconds", LEASE, LEASE_S, frozenset({STREAM}), "how long a group keeps an idle lease"),
    Option("startingPosition", START, EARLIEST, frozenset({STREAM}), "where a new query begins"),
    Option(
        "failOnDataLoss",
        BOOLEAN,
        default=True,
        uses=frozenset({STREAM}),
        what="whether messages that are gone are an error",
    ),
    Option("maxMessagesPerTrigger", NATURAL, None, frozenset({STREAM}), "messages in one batch at most"),
    Option("maxBytesPerTrigger", NATURAL, None, frozenset({STREAM}), "bytes in one batch, about"),
    Option("maxMessagesPerPartition", NATURAL, None, _READS, "messages that one Spark task reads at most"),
    Option("minPartitions", NATURAL, None, _READS, "Spark tasks among which a large backlog is divided"),
)

_BY_LOWER: Final = {option.name.lower(): option for option in OPTIONS}
_SECRETS: Final = ("password", "passwordFile", "passwordEnv", "token", "tokenFile")


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """The options of one read or write: checked, typed, complete. Pickles, and keeps its secret to itself."""

    use: str
    #: Every option of this use, with the default of those that were not given.
    values: Mapping[str, Any]
    given: frozenset[str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __repr__(self) -> str:
        shown = {name: self.values[name] for name in sorted(self.given) if name not in _SECRETS}
        return f"{type(self).__name__}({self.use}, {shown})"

    @property
    def login(self) -> str:
        """The option that says who connects: `username`, or that of the token."""
        return next((name for name in ("token", "tokenFile") if self[name] is not None), "username")

    def token(self) -> str | Callable[[], str] | None:
        """Give the token, or what reads its file each time, on the machine that connects; None without one.

        Raises:
            InvalidRequestError: the file cannot be read now (INVALID_ARGUMENT).
        """
        if self["tokenFile"] is None:
            given: str | None = self["token"]
            return given
        self._read_token()
        return self._read_token

    def _read_token(self) -> str:
        return self._content("tokenFile").strip()

    def secret(self) -> str | None:
        """Give the password, from wherever the options say, on the machine that connects.

        Raises:
            InvalidRequestError: the file or the variable cannot be read (INVALID_ARGUMENT).
        """
        if self["passwordFile"] is not None:
            return self._content("passwordFile").rstrip("\r\n")
        if self["passwordEnv"] is not None:
            if self["passwordEnv"] not in os.environ:
                raise invalid("passwordEnv", f"there is no environment variable {self['passwordEnv']}")
            return os.environ[self["passwordEnv"]]
        found: str | None = self["password"]
        return found

    def _content(self, option: str) -> str:
        """Give what is in the file that an option names."""
        try:
            return Path(self[option]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise invalid(option, f"{self[option]} cannot be read: {reason}") from None


def settings(use: str, given: Mapping[str, str]) -> Settings:
    """Check the options that a user gave for a read or write.

    Args:
        use: one of BATCH, STREAM, WRITE, STREAM_WRITE.
        given: names in any case, and texts.

    Raises:
        InvalidRequestError: an option is unknown, does not belong to this use, or has a value that is not possible
            (INVALID_ARGUMENT); the text names it.
    """
    values: dict[str, Any] = {}
    for name, text in given.items():
        option = _known(use, name)
        values[option.name] = _read(option, text)
    secrets = [name for name in _SECRETS if name in values]
    if len(secrets) > 1:
        raise invalid(secrets[0], f"it is given beside {secrets[1]}; one is enough")
    complete = {option.name: option.default for option in OPTIONS if use in option.uses}
    return Settings(use, complete | values, frozenset(values))


def columns_of(given: Mapping[str, str]) -> tuple[str, ...]:
    """Give the columns that a read is to have; Spark asks for them before it says what kind of read it is.

    Raises:
        InvalidRequestError: a column is unknown or given twice (INVALID_ARGUMENT).
    """
    option = _BY_LOWER["columns"]
    found: tuple[str, ...] = _read(option, given["columns"]) if "columns" in given else option.default
    return found


def invalid(name: str, why: str) -> errors.AngariumError:
    """Give the error for an option."""
    return errors.invalid(f"option {name}: {why}", f"the options: {documented('spark')}")


def _known(use: str, name: str) -> Option:
    option = _BY_LOWER.get(name.lower())
    if option is None:
        raise invalid(name, f"it is unknown{_suggestion(use, name)}")
    if use not in option.uses:
        uses = ", ".join(one for one in (BATCH, STREAM, WRITE, STREAM_WRITE) if one in option.uses)
        raise invalid(option.name, f"it is for {uses}, not for {use}")
    return option


def _suggestion(use: str, name: str) -> str:
    possible = [lower for lower, option in _BY_LOWER.items() if use in option.uses]
    near = difflib.get_close_matches(name.lower(), possible, 3, _NEAR)
    return f"; did you mean {' or '.join(_BY_LOWER[one].name for one in near)}?" if near else ""


def _read(option: Option, text: str) -> Any:
    try:
        return option.kind.read(text)
    except _WrongError as error:
        why = f": {error}"
    except (ValueError, OverflowError):
        why = ""
    raise invalid(option.name, f"it is {text[:_SHOWN_MAX]!r}, possible is {option.kind.what}{why}")
