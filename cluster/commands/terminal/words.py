"""What other brokers and tools call a command: the word that fingers type, and the commands here that do it.

A word goes before what merely looks alike: `declare` creates a queue elsewhere, and is four letters from `delete`.
"""

from __future__ import annotations

from typing import Final

#: Words inside of a group (`angarium queue edit`) and of `angarium` itself. A group suggests those that it has.
OF_COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "add": ("create", "scale"),
    "alter": ("update",),
    "browse": ("messages",),
    "clear": ("purge",),
    "create": ("add",),
    "declare": ("create",),
    "del": ("delete", "remove"),
    "delete": ("remove", "disconnect"),
    "describe": ("show",),
    "destroy": ("delete",),
    "drain": ("purge",),
    "drop": ("delete",),
    "edit": ("update",),
    "empty": ("purge",),
    "get": ("show", "list"),
    "kick": ("disconnect",),
    "kill": ("disconnect", "down"),
    "modify": ("update",),
    "new": ("create", "add"),
    "peek": ("messages",),
    "remove": ("delete", "scale"),
    "replay": ("redrive",),
    "republish": ("redrive",),
    "requeue": ("redrive",),
    "set": ("update", "scale"),
    "stats": ("show", "status"),
    "tail": ("messages", "sub"),
    "view": ("show",),
}
#: Words that only `angarium` itself is given, with the whole command that is meant.
OF_ANGARIUM: Final[dict[str, tuple[str, ...]]] = {
    "apply": ("config apply",),
    "backup": ("spool backup",),
    "check": ("health", "config check"),
    "doctor": ("health", "status"),
    "exchange": ("queue",),
    "export": ("config export",),
    "get": ("consume", "queue list"),
    "info": ("status",),
    "listen": ("sub",),
    "log": ("events",),
    "logs": ("events",),
    "monitor": ("top",),
    "node": ("cluster status",),
    "nodes": ("cluster status",),
    "ping": ("health",),
    "produce": ("pub",),
    "ps": ("status",),
    "publish": ("pub",),
    "restart": ("down", "up"),
    "restore": ("spool restore",),
    "run": ("up",),
    "send": ("pub",),
    "serve": ("up",),
    "server": ("up", "status"),
    "start": ("up",),
    "stop": ("down",),
    "stream": ("queue",),
    "subscribe": ("sub",),
    "user": ("username",),
    "users": ("username",),
    "watch": ("top", "events"),
}


def meant_by(word: str, known: list[str], *, outermost: bool) -> list[str]:
    """Give the commands that a word of other tools means, those whose first word is a known command."""
    meant = OF_ANGARIUM.get(word, ()) if outermost else ()
    return [command for command in meant or OF_COMMANDS.get(word, ()) if command.split()[0] in known]
