"""Hints for fingers that know another broker: its wildcards are ordinary characters here, and match nothing.

A pure function over a topic filter. Commands print what it gives on stderr, unless `-q` was given.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import termios
from typing import TYPE_CHECKING, Any, Final

import click

from angarium_server.visible import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Before the filter of a shared subscription.
_SHARED: Final = re.compile(r"#share/[^/]+/")
_EXCEPTION: Final = "!"
#: Dots between words, of which one at least is a wildcard: nobody means them literally.
_DOTTED: Final = re.compile(r"[^/]+(\.[^/.]+)*\.(>|\*|#)(\.[^/]+)*|(\*|#)(\.[^/.]+)+")


def filter_hint(text: str) -> str:
    """Give a sentence if a topic filter looks like one of MQTT, AMQP or NATS, else nothing.

    "orders/#" and "orders.>" mean "orders/>", "orders/+/x" means "orders/*/x". "orders/c#" and "v1.2/>" are topics like
    others.
    """
    sign = _EXCEPTION if text.startswith(_EXCEPTION) else ""
    plain = text.removeprefix(_EXCEPTION)
    if shared := _SHARED.match(plain):
        sign, plain = sign + shared[0], plain[shared.end() :]
    meant, foreign = plain, ""
    if _DOTTED.fullmatch(plain):
        meant, foreign = meant.replace(".", "/"), "."
    levels = meant.split("/")
    if levels[-1] == "#":
        levels[-1], foreign = ">", foreign or "#"
    if "+" in levels:
        levels, foreign = ["*" if level == "+" else level for level in levels], foreign or "+"
    elif foreign == "." and "#" in levels:
        return ""
    if not foreign:
        return ""
    what = "'.' separates no levels here" if foreign == "." else f"'{foreign}' is no wildcard here"
    return f"{what}: did you mean '{sign}{'/'.join(levels)}'?"


def topic_hint(text: str) -> str:
    """Give a sentence if a message is published to what looks like a filter: it goes to that topic literally."""
    levels = text.split("/")
    if levels[-1] == ">" or "*" in levels:
        wildcard = ">" if levels[-1] == ">" else "*"
        return f"'{wildcard}' is no wildcard for pub: the message goes to the topic '{text}' as it is written"
    return ""


def payload_hint(text: str | None) -> str:
    """Give a sentence if a payload is the sign by which other commands mean their standard input."""
    return "the payload is '-' itself: '--file -' reads it from the standard input" if text == "-" else ""


def unread_hint(descriptor: int) -> str:
    """Give a sentence if something waits in a pipe, the standard input of a command that does not read it."""
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return ""
        waiting = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    except OSError:
        return ""
    text = "the payload is empty: '--file -' reads it from the standard input, '--lines -' one from each line"
    return text if any(waiting) else ""


def attribute_hints(attributes: Mapping[str, Any]) -> list[str]:
    """Give hints for the attributes of an object that are filters: subscriptions, and exceptions of an ACL profile."""
    hints = []
    for name, value in attributes.items():
        if name.endswith(("subscriptions", "topic_exceptions")):
            hints += [filter_hint(text) for text in ([value] if isinstance(value, str) else value)]
    return hints


#: Add `-q`; the function gets `quiet: bool`.
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print no hints and no progress on stderr.")


def print_hints(hints: Iterable[str], *, quiet: bool) -> None:
    """Print hints on stderr, each once."""
    if quiet:
        return
    for hint in dict.fromkeys(filter(None, hints)):
        click.echo(f"hint: {visible(hint)}", err=True)
