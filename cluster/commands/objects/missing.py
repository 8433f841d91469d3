"""What a command about one object says if there is none of that name: how to list them, and which one may be meant.

The node is asked for the names that this operator may see.
"""

from __future__ import annotations

import difflib
import functools
from typing import TYPE_CHECKING, Any, Final

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.commands.connecting.connection import AdminOptions

#: Of more names than these none is compared: a thousand take 10 ms.
_COMPARED_MAX: Final = 10_000


def naming(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have a command about the object NAME of this kind say more if it is not there."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def command(*, admin: AdminOptions, name: str, vpn: str, **more: Any) -> Any:
            try:
                return function(admin=admin, name=name, vpn=vpn, **more)
            except errors.NotFoundError as error:
                # Another one may be missing: its Message VPN, or where messages are to go.
                if error.code != errors.OBJECT_NOT_FOUND or not error.detail.startswith(f"{kind} {name!r}"):
                    raise
                raise _with_names(error, admin, kind, vpn, name) from None

        return functools.update_wrapper(command, function)

    return decorate


def _with_names(
    error: errors.NotFoundError, admin: AdminOptions, kind: str, vpn: str, name: str
) -> errors.AngariumError:
    """Give the error with the name that looks like the one that is not there, and the command that lists them."""
    try:
        known = [row["name"] for row in admin.call("objects.list", kind=kind, vpn=vpn, name="*")]
    except errors.AngariumError:
        return error
    close = difflib.get_close_matches(name, known, n=1) if len(known) <= _COMPARED_MAX else []
    meant = f": did you mean {close[0]!r}?" if close else ""
    where = f" --vpn {vpn}" if vpn not in ("", "default") else ""
    advice = f"'angarium {kind} list{where}' shows the names"
    return errors.error_for(error.code, f"{error.detail}{meant}", advice)
