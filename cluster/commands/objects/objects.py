"""`angarium vpn`, `username`, `profile`, `acl`, `operator` and `template`: objects with the same five verbs.

The verbs are made once per kind of object; queues and topic endpoints have more of them
(`cluster/commands/queues/endpoints.py`). Values go to the controller as they were written; it converts and checks
them, so the command line and the configuration file refuse the same things with the same words.

`angarium username may`: what a client username may do, and which rule says so.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from angarium_server.visible import visible
from cluster.commands.connecting.completion import complete_names
from cluster.commands.connecting.connection import AdminOptions, admin_options, read_password
from cluster.commands.objects.missing import naming
from cluster.commands.terminal.confirming import asks, confirm, yes_option
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.hints import attribute_hints, print_hints, quiet_option
from cluster.commands.terminal.options import FILE, options, setting
from cluster.commands.terminal.output import (
    TABLE,
    Output,
    list_option,
    output_option,
    print_exactly,
    print_lines,
    width,
)
from cluster.commands.terminal.table import cell, counted, fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

VERBS: Final = ("publish", "subscribe", "consume")
#: The exit code of a command whose answer is no.
NO: Final = 1

_EPILOG: Final = (
    "\b\nangarium username may alice publish orders/new\n"
    "angarium username may alice publish '#P2P/QUE/orders' --guaranteed    # to the queue orders\n"
    "angarium username may alice subscribe '#share/team/orders/>'\n"
    "angarium username may alice consume orders"
)


@click.command("may", epilog=_EPILOG)
@click.argument("name", shell_complete=complete_names("username"))
@click.argument("verb", type=click.Choice(VERBS))
@click.argument("target")
@setting("--vpn", default="default", help="Message VPN of the username.")
@click.option("--guaranteed", is_flag=True, help="Publish guaranteed messages.")
@output_option
@admin_options
def may(*, admin: AdminOptions, out: Output, **asked: Any) -> None:
    """Tell whether NAME may publish to the topic TARGET, subscribe to the filter, or consume the queue.

    Each rule that has a say is shown. The exit code is 0 if it may, 1 if not.
    """
    found = admin.call("access.check", **asked)

    def draw(found: dict[str, Any]) -> None:
        verdict = "may" if found["allowed"] else "may not"
        click.echo(visible(f"{asked['name']} {verdict} {asked['verb']} {asked['target']}"))
        for one in found["checks"]:
            click.echo(visible(f"  {'yes' if one['ok'] else 'no ':3}  {one['name']}: {one['text']}"))

    out.one(found, draw)
    if not found["allowed"]:
        click.get_current_context().exit(NO)


#: What the table of a list shows; `--json` and `show` have everything.
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "vpn": ("name", "enabled", "max_connection_count", "max_subscription_count"),
    "username": ("name", "vpn", "enabled", "password_set", "acl_profile", "client_profile"),
    "profile": ("name", "vpn", "max_subscription_count", "eliding", "eliding_delay_ms"),
    "acl": ("name", "vpn", "client_connect_default", "publish_topic_default", "subscribe_topic_default"),
    "operator": ("name", "enabled", "role", "vpn", "password_set"),
    "template": ("name", "vpn", "kind_of_endpoint", "name_filter", "access_type", "permission"),
}
#: What `-o wide` shows besides.
WIDE_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "username": ("subscription_manager",),
    "operator": ("certificate_name", "token_subject"),
    "profile": ("allow_shared_subscriptions",),
    "template": ("max_spool_usage_mb",),
}
#: The vpn of an object that belongs to none.
NO_VPN: Final = ""
#: Kinds of objects that belong to none.
KINDS_WITHOUT_VPN: Final = ("vpn", "link", "operator")
_PASSWORD: Final = "--password-file", "File whose first line is the password."
_AUTHORITIES: Final = "File with the authorities of the {} (PEM), to be read into ca_pem."
#: Kind -> the option that names a file which is read into an attribute, and what is in that.
_FILES: Final = {
    "username": _PASSWORD,
    "operator": _PASSWORD,
    "bridge": ("--remote-ca-file", _AUTHORITIES.format("remote node")),
    "webhook": ("--target-ca-file", _AUTHORITIES.format("target")),
}
#: Attributes that are paths on the node's host, where the command mostly runs.
_PATHS: Final = {
    "bridge": ("remote_password_file",),
    "webhook": ("authorization_file", "secret_file"),
}
_KINDS_WITH_MESSAGES: Final = ("queue", "topic-endpoint")


def parse_assignments(
    _ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> dict[str, str | list[str]]:
    """Read every `--set attribute=value`; an attribute given more than once is a list.

    Raises:
        click.BadParameter: there is no `=`, or a password, which belongs in a file.
    """
    attributes: dict[str, list[str]] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            message = f"'{text}' is no assignment; write ATTRIBUTE=VALUE."
            raise click.BadParameter(message)
        if name == "password":
            message = (
                "a password on the command line is seen by every user of the machine; use --password-file."
            )
            raise click.BadParameter(message)
        attributes.setdefault(name, []).append(value)
    return {name: found[0] if len(found) == 1 else found for name, found in attributes.items()}


#: Add `--set`, which the function gets as `attributes`.
set_option = click.option(
    "--set",
    "attributes",
    metavar="A=V",
    multiple=True,
    callback=parse_assignments,
    help="Set an attribute; repeat it for more, or for the items of a list.",
)


def any_vpn_option(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--vpn` to a list, which shows the objects of all Message VPNs without it."""
    if kind not in KINDS_WITHOUT_VPN:
        return click.option("--vpn", help="Message VPN of the objects.  [default: all]")
    return vpn_option(kind)


def vpn_option(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--vpn`; an object that belongs to no Message VPN gets a fixed value instead."""
    if kind not in KINDS_WITHOUT_VPN:
        return setting("--vpn", default="default", help="Message VPN of the object.")

    def fixed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(**values: Any) -> Any:
            return function(vpn=NO_VPN, **values)

        return command

    return fixed


def of_one(
    kind: str, *more: Callable[..., Any], show: Callable[..., Any] = output_option
) -> Callable[..., Any]:
    """Add what a command about one object has: its NAME, `more`, `--vpn`, how to print, and where the node is."""
    name = click.argument("name", shell_complete=complete_names(kind))
    return options(name, *more, vpn_option(kind), show, admin_options, naming(kind))


def make_group(kind: str, sentence: str) -> click.Group:
    """Make the group of commands of one kind of object."""
    group = SuggestingGroup(kind, help=sentence)
    group.add_command(list_command(kind, "objects.list", COLUMNS[kind], WIDE_COLUMNS.get(kind, ())))
    group.add_command(show_command(kind))
    group.add_command(change_command(kind, "create", f"Create the {kind} NAME."))
    group.add_command(change_command(kind, "update", f"Change attributes of the {kind} NAME."))
    group.add_command(delete_command(kind))
    group.add_command(attributes_command(kind))
    return group


def list_command(kind: str, operation: str, columns: Sequence[str], wide: Sequence[str]) -> click.Command:
    """Make the command that lists the objects of a kind, with these columns of what the operation answers."""

    @click.command(
        "list", help=f"List each {kind} whose name matches PATTERN (* and ? stand for characters)."
    )
    @click.argument("pattern", shell_complete=complete_names(kind), default="*")
    @any_vpn_option(kind)
    @list_option
    @admin_options
    def list_objects(*, admin: AdminOptions, pattern: str, vpn: str | None, out: Output) -> None:
        found = admin.call(operation, kind=kind, vpn=vpn, name=pattern)
        out.rows(found, columns, wide=wide, empty=f"no {kind} matches '{pattern}'")

    return list_objects


def show_command(kind: str) -> click.Command:
    """Make the command that shows one object."""

    @click.command("show", help=f"Show all attributes of the {kind} NAME.")
    @of_one(kind)
    def show(*, admin: AdminOptions, name: str, vpn: str, out: Output) -> None:
        out.one(admin.call("objects.show", kind=kind, vpn=vpn, name=name), print_exactly)

    return show


def change_command(kind: str, verb: str, sentence: str) -> click.Command:
    """Make the command that creates or updates one."""

    @click.command(verb, help=f"{sentence} 'angarium {kind} attributes' lists the attributes.")
    @click.argument("name", shell_complete=complete_names(kind) if verb == "update" else None)
    @set_option
    @quiet_option
    @vpn_option(kind)
    @output_option
    @admin_options
    @naming(kind)
    def change(
        *,
        admin: AdminOptions,
        name: str,
        vpn: str,
        attributes: dict[str, Any],
        quiet: bool,
        out: Output,
        **files: Path | None,
    ) -> None:
        print_hints(attribute_hints(attributes), quiet=quiet)
        for name_of_file in [one for one in _PATHS.get(kind, ()) if attributes.get(one)]:
            attributes[name_of_file] = str(Path(attributes[name_of_file]).absolute())
        ca_file = files.get("remote_ca_file") or files.get("target_ca_file")
        if ca_file is not None:
            from cluster.configuration.config import read_pem

            attributes["ca_pem"] = read_pem(ca_file)
        password = read_password(files.get("password_file"))
        if password is not None:
            attributes["password"] = password
        changed = admin.call(f"objects.{verb}", kind=kind, vpn=vpn, name=name, attributes=attributes)
        print_change(changed, verb, attributes, out=out)

    if kind in _FILES:
        option, meaning = _FILES[kind]
        change.params.append(click.Option([option], type=FILE, help=meaning))
    return change


def delete_command(kind: str) -> click.Command:
    """Make the command that deletes one."""
    content = " with all its messages" if kind in _KINDS_WITH_MESSAGES else ""

    @click.command("delete", help=f"Delete the {kind} NAME{content}.")
    @of_one(kind, yes_option)
    def delete(*, admin: AdminOptions, name: str, vpn: str, yes: bool, out: Output) -> None:
        held = (
            f" with its {content_of(admin, kind, vpn, name, yes=yes)}" if kind in _KINDS_WITH_MESSAGES else ""
        )
        confirm(f"delete {kind} {name}{held}", yes=yes)
        admin.call("objects.delete", kind=kind, vpn=vpn, name=name)
        out.done(f"{kind} {name} deleted", {"kind": kind, "name": name, "deleted": True})

    return delete


def content_of(admin: AdminOptions, kind: str, vpn: str, name: str, *, yes: bool) -> str:
    """Say how many messages an endpoint holds, if somebody is going to be asked: "5 messages"."""
    if not asks(yes=yes):
        return "messages"
    found = admin.call("endpoints.show", kind=kind, vpn=vpn, name=name)
    return counted(found["messages_spooled"] or 0, "message")


def attributes_command(kind: str) -> click.Command:
    """Make the command that explains the attributes of a kind."""

    @click.command("attributes", help=f"List the attributes of a {kind}: type, range, default and meaning.")
    @list_option
    def attributes(*, out: Output) -> None:
        from cluster.objects import attributes_of

        rows = [
            {
                "attribute": attribute.name,
                "type": attribute.type_name,
                "range": attribute.range_text,
                "default": attribute.default,
                "meaning": attribute.sentence,
            }
            for attribute in attributes_of(kind)
        ]
        if out.form == TABLE:
            print_lines(_explained(rows, width()))
        else:
            columns = ("attribute", "type", "default", "range", "meaning")
            out.rows(rows, columns, name="attribute", empty="no attributes")

    return attributes


def _explained(rows: list[dict[str, Any]], columns: int) -> list[str]:
    """Give attributes with their sentences below: side by side they would be five narrow columns."""
    lines = []
    for row in rows:
        default = cell(row["default"]) or "nothing"
        lines.append(f"{row['attribute']}  ({row['range']}; default {default})")
        lines += [f"    {line}" for line in fold(row["meaning"], columns - 4)]
    return lines


def print_change(found: dict[str, Any], verb: str, attributes: Iterable[str], *, out: Output) -> None:
    """Print an object that was created or updated: as JSON all of it, else what was set."""

    def say(found: dict[str, Any]) -> None:
        click.echo(visible(f"{found['kind']} {found['name']} {verb}d"))
        print_exactly({name: found[name] for name in attributes if name in found})

    out.one(found, say)


vpn = make_group("vpn", "Message VPNs: isolated sets of topics, users and limits.")
username = make_group("username", "Client usernames: accounts, with their profiles.")
username.add_command(may)
profile = make_group("profile", "Client profiles: rights and limits of clients.")
acl = make_group("acl", "ACL profiles: the addresses, topics and share names that a client may use.")
operator = make_group(
    "operator", "Operators: who manages the node, or one Message VPN, and what they may do."
)
template = make_group("template", "Templates: attributes of the endpoints that clients create.")
