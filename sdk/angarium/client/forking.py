"""Clients after a fork: the child has copies of its parent's clients and leaves their connections alone.

Parent and child share each socket, and what an event loop watches: a byte that the child sends ends up in the middle of
what the parent sends, and a descriptor that the child's copy of the loop stops watching is not watched for the parent
either. So every client is cut off in the child before anything else runs there, without a system call on what is
shared; using one raises FORKED. Clients register with `watch`.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: What cuts each client off.
_watched: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def watch(client: Any, cut_off: Callable[[Any], None]) -> None:
    """Have a client cut off in children of this process.

    Args:
        client: is not kept alive.
        cut_off: called with it in a child; must not take a lock, which nobody may release.
    """
    _watched[client] = cut_off


def _cut_off() -> None:
    for client, cut_off in list(_watched.items()):
        cut_off(client)
    _watched.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_cut_off)
