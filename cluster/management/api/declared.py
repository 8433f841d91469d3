"""The objects that a text declares: what `angarium config apply FILE` reads on the host of whoever types it.

Here the text comes from somewhere else, so nothing in it leads to a file of this host being read: passwords are hashes,
as `angarium config export` writes them, and certificates stand in `ca_pem`.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from angarium import errors
from cluster.configuration.config import parse_objects

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Attributes of a file that are read when it is applied.
READ: Final = ("password_file", "ca_file")
_ADVICE: Final = "write what 'angarium config export' writes, or apply the file with 'angarium config apply'"


class DeclaredText(msgspec.Struct, forbid_unknown_fields=True):
    """A configuration file, or the objects of one."""

    text: Annotated[str, Meta(description="TOML, as 'angarium config export' prints it.")]


class DeclaredObjects(msgspec.Struct):
    """What it declares, as `config.apply` takes it."""

    objects: list[tuple[str, str | None, str, dict[str, Any]]]


def objects_of(body: dict[str, Any]) -> dict[str, Any]:
    """Give the objects that the text of a request declares.

    Raises:
        InvalidRequestError: there is no text (40018), or it has a fault (40017).
    """
    try:
        text = msgspec.convert(body, DeclaredText).text
        files = list(_files(tomllib.loads(text)))
    except msgspec.ValidationError as error:
        raise errors.invalid(str(error)) from None
    except tomllib.TOMLDecodeError as error:
        raise errors.error_for(errors.INVALID_CONFIGURATION, str(error)) from None
    except RecursionError:
        raise errors.error_for(
            errors.INVALID_CONFIGURATION, "its tables are within each other too often"
        ) from None
    for name, value in files:
        if name in READ or not str(value).startswith("/"):
            detail = f"{name} = {str(value)[:100]!r} is a file of another host"
            raise errors.error_for(errors.INVALID_CONFIGURATION, detail, _ADVICE)
    return {"objects": parse_objects(text, "/")}


def _files(table: Any) -> Iterator[tuple[str, str]]:
    """Give what names a file, in tables of objects: those of `vpn`, and lists; others are sections of processes."""
    for section, value in table.items():
        if section == "vpn" or isinstance(value, list):
            yield from _named(value)


def _named(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        yield from ((name, one) for name, one in value.items() if name.endswith("_file") and one)
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _named(one)
