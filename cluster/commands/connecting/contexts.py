"""Contexts: names for the nodes that somebody works with, and as whom; `angarium context` changes them.

They are in one file, `$XDG_CONFIG_HOME/angarium/contexts.toml` (`~/.config/angarium/contexts.toml`), which may be
edited by hand:

    current = "prod"

    [context.prod]
    url = "tcp://node-1.example:55555"
    vpn = "orders"
    user = "alice"
    password_file = "/home/alice/.secrets/angarium"

Secrets are not in it, only the names of the files that have them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: What may be a name: it is part of a TOML header and of completions.
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
#: Far beyond what anybody lists; a larger file is something else.
FILE_BYTES_MAX: Final = 1_000_000


class Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One context; what it leaves out is looked for as without a context."""

    #: Address for clients.
    url: str = ""
    #: Data directory of a node of this host.
    data: str = ""
    vpn: str = ""
    user: str = ""
    password_file: str = ""
    #: A token instead of a password.
    token_file: str = ""
    #: Authorities that may sign the certificate of a `tls://` address.
    ca_file: str = ""
    #: Certificate of this client, or operator, and its private key.
    cert_file: str = ""
    key_file: str = ""
    #: Address for operators.
    admin_url: str = ""
    #: Address of a management API, and who logs in there.
    management: str = ""
    operator: str = ""
    operator_password_file: str = ""


class Contexts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the file holds."""

    #: The context that commands use; empty for none.
    current: str = ""
    context: dict[Annotated[str, Meta(pattern=NAME_PATTERN)], Context] = {}

    def named(self, name: str) -> Context:
        """Give a context.

        Raises:
            NotFoundError: there is none of that name (40401).
        """
        try:
            return self.context[name]
        except KeyError:
            known = ", ".join(sorted(self.context)) or "none yet"
            advice = f"contexts: {known}; 'angarium context add {name} --url ...' makes it"
            raise errors.error_for(errors.OBJECT_NOT_FOUND, f"context {name!r}", advice) from None


def path(environment: Mapping[str, str] = os.environ) -> Path:
    """Give the file that holds the contexts, which may not exist."""
    configured = environment.get("XDG_CONFIG_HOME", "")
    folder = Path(configured) if os.path.isabs(configured) else Path.home() / ".config"
    return folder / "angarium" / "contexts.toml"


def load(file: Path) -> Contexts:
    """Read the contexts; there are none without the file.

    Raises:
        InvalidRequestError: it is damaged; the text has file and line (40017).
    """
    try:
        with file.open("rb") as opened:
            text = opened.read(FILE_BYTES_MAX + 1).decode()
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise _damaged(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise _damaged(f"{file}, line {line}: it is no text in UTF-8") from None
    if len(text) > FILE_BYTES_MAX:
        raise _damaged(f"{file} has more than {FILE_BYTES_MAX:,} bytes")
    return parse(text, str(file))


def parse(text: str, file: str) -> Contexts:
    """Read the text of the file.

    Raises:
        InvalidRequestError: it is damaged; the text has file and line (40017).
    """
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what = str(error)
        at = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", what)
        line = (int(at[1]) if at and at[1] else None) or text.count("\n") + 1
        raise _damaged(f"{file}, line {line}: {what[: at.start()] if at else what}") from None
    header = ""
    tables = table.get("context")
    try:
        for header, values in tables.items() if isinstance(tables, dict) else ():  # noqa: B007 - the one that fails
            msgspec.convert(values, Context)
        header = ""
        found = msgspec.convert(table, Contexts)
    except msgspec.ValidationError as error:
        raise _damaged(f"{file}, line {_line_of(text, header, str(error))}: {error}") from None
    if found.current and found.current not in found.context:
        line = _line_of(text, "", "`$.current`")
        raise _damaged(f"{file}, line {line}: the current context {found.current!r} is none of those below")
    return found


@contextlib.contextmanager
def edit(file: Path) -> Iterator[Contexts]:
    """Give the contexts to change, and write them durably at the end; others who change them wait meanwhile.

    Raises:
        InvalidRequestError: the file is damaged (40017).
        OSError: it cannot be written.
    """
    import tomli_w

    from cluster.data.data_dir import write_durably

    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        found = load(file)
        yield found
        write_durably(file, tomli_w.dumps(msgspec.to_builtins(found)).encode())
    finally:
        os.close(folder)


def _damaged(what: str) -> errors.AngariumError:
    advice = (
        "mend it there, or remove the file and add the contexts again; 'angarium docs connecting' shows one"
    )
    return errors.error_for(errors.INVALID_CONFIGURATION, what, advice)


def _line_of(text: str, header: str, fault: str) -> int:
    """Give the line of the key that a fault names, below the header of its context; else of the header."""
    named = re.search(r"`(?:\$\.)?([\w-]+)`(?!.*`)|field `([\w-]+)`", fault)
    key = (named[2] or named[1]) if named else ""
    lines = text.splitlines()
    start = 0
    if header:
        pattern = rf"\s*\[\s*context\s*\.\s*[\"']?{re.escape(header)}[\"']?\s*\]"
        start = next((number for number, line in enumerate(lines) if re.match(pattern, line)), 0)
    for number, line in enumerate(lines[start:], start + 1):
        if key and re.match(rf"\s*\[?\s*[\"']?{re.escape(key)}[\"']?\s*[=\].]", line):
            return number
    return start + 1
