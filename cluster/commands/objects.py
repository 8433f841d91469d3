"""`angarium vpn`, `username`, `profile`, `acl` and `template`: what operators create, each with the same five verbs.

The verbs are made once per kind of object; queues and topic endpoints have more of them
(`cluster/commands/guaranteed/endpoints.py`). Values go to the controller as they were written; it converts and checks
them, so the command line and the configuration file refuse the same things with the same words.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cluster.commands.connection import AdminOptions, admin_options, json_option, read_password
from cluster.commands.group import SuggestingGroup
from cluster.commands.output import (
    print_exactly,
    print_json,
    print_json_lines,
    print_table,
    wants_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: What the table of a list shows; `--json` and `show` have everything.
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "vpn": ("name", "enabled", "max_connection_count", "max_subscription_count"),
    "username": (
        "vpn",
        "name",
        "enabled",
        "password_set",
        "acl_profile",
        "client_profile",
        "subscription_manager",
    ),
    "profile": (
        "vpn",
        "name",
        "allow_shared_subscriptions",
        "eliding",
        "eliding_delay_ms",
        "max_subscription_count",
    ),
    "acl": ("vpn", "name", "client_connect_default", "publish_topic_default", "subscribe_topic_default"),
    "template": (
        "vpn",
        "name",
        "kind_of_endpoint",
        "name_filter",
        "access_type",
        "permission",
        "max_spool_usage_mb",
    ),
}
#: The vpn of an object that belongs to none.
NO_VPN: Final = ""
#: Kinds of objects that belong to none.
KINDS_WITHOUT_VPN: Final = ("vpn", "link")
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


def set_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--set`, which the function gets as `attributes`."""
    return click.option(
        "--set",
        "attributes",
        metavar="A=V",
        multiple=True,
        callback=parse_assignments,
        help="Set an attribute; repeat it for more, or for the items of a list.",
    )(function)


def any_vpn_option(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--vpn` to a list, which shows the objects of all Message VPNs without it."""
    if kind not in KINDS_WITHOUT_VPN:
        return click.option("--vpn", help="Message VPN of the objects.  [default: all]")
    return vpn_option(kind)


def vpn_option(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--vpn`; an object that belongs to no Message VPN gets a fixed value instead."""
    if kind not in KINDS_WITHOUT_VPN:
        return click.option("--vpn", default="default", show_default=True, help="Message VPN of the object.")

    def fixed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(**values: Any) -> Any:
            return function(vpn=NO_VPN, **values)

        return command

    return fixed


def make_group(kind: str, sentence: str) -> click.Group:
    """Make the group of commands of one kind of object."""
    group = SuggestingGroup(kind, help=sentence)
    group.add_command(_list_command(kind))
    group.add_command(show_command(kind))
    group.add_command(change_command(kind, "create", f"Create the {kind} NAME."))
    group.add_command(change_command(kind, "update", f"Change attributes of the {kind} NAME."))
    group.add_command(delete_command(kind))
    group.add_command(attributes_command(kind))
    return group


def _list_command(kind: str) -> click.Command:
    @click.command(
        "list", help=f"List each {kind} whose name matches PATTERN (* and ? stand for characters)."
    )
    @click.argument("pattern", default="*")
    @any_vpn_option(kind)
    @json_option
    @admin_options
    def list_objects(*, admin: AdminOptions, pattern: str, vpn: str | None, as_json: bool) -> None:
        found = admin.call("objects.list", kind=kind, vpn=vpn, name=pattern)
        if wants_json(as_json):
            print_json_lines(found)
        else:
            print_table(found, COLUMNS[kind], empty=f"no {kind} matches '{pattern}'")

    return list_objects


def show_command(kind: str) -> click.Command:
    """Make the command that shows one object."""

    @click.command("show", help=f"Show all attributes of the {kind} NAME.")
    @click.argument("name")
    @vpn_option(kind)
    @json_option
    @admin_options
    def show(*, admin: AdminOptions, name: str, vpn: str, as_json: bool) -> None:
        print_object(admin.call("objects.show", kind=kind, vpn=vpn, name=name), as_json=as_json)

    return show


def change_command(kind: str, verb: str, sentence: str) -> click.Command:
    """Make the command that creates or updates one."""

    @click.command(verb, help=f"{sentence} 'angarium {kind} attributes' lists the attributes.")
    @click.argument("name")
    @set_option
    @vpn_option(kind)
    @json_option
    @admin_options
    def change(
        *,
        admin: AdminOptions,
        name: str,
        vpn: str,
        attributes: dict[str, Any],
        as_json: bool,
        **secret: Path | None,
    ) -> None:
        if kind == "bridge" and attributes.get("remote_password_file"):
            attributes["remote_password_file"] = str(Path(attributes["remote_password_file"]).absolute())
        password = read_password(secret.get("password_file"))
        if password is not None:
            attributes["password"] = password
        changed = admin.call(f"objects.{verb}", kind=kind, vpn=vpn, name=name, attributes=attributes)
        print_change(changed, verb, attributes, as_json=as_json)

    if kind == "username":
        change.params.append(
            click.Option(
                ["--password-file"],
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="File whose first line is the password.",
            )
        )
    return change


def delete_command(kind: str) -> click.Command:
    """Make the command that deletes one."""
    content = " with all its messages" if kind in _KINDS_WITH_MESSAGES else ""

    @click.command("delete", help=f"Delete the {kind} NAME{content}.")
    @click.argument("name")
    @vpn_option(kind)
    @json_option
    @admin_options
    def delete(*, admin: AdminOptions, name: str, vpn: str, as_json: bool) -> None:
        admin.call("objects.delete", kind=kind, vpn=vpn, name=name)
        if wants_json(as_json):
            print_json({"kind": kind, "name": name, "deleted": True})
        else:
            click.echo(f"{kind} {name} deleted")

    return delete


def attributes_command(kind: str) -> click.Command:
    """Make the command that explains the attributes of a kind."""

    @click.command("attributes", help=f"List the attributes of a {kind}: type, range, default and meaning.")
    @json_option
    def attributes(*, as_json: bool) -> None:
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
        if wants_json(as_json):
            print_json_lines(rows)
        else:
            print_table(rows, ("attribute", "type", "range", "default", "meaning"), empty="no attributes")

    return attributes


def print_object(found: dict[str, Any], *, as_json: bool) -> None:
    """Print an object as JSON or as a table of its attributes."""
    if wants_json(as_json):
        print_json(found)
    else:
        print_exactly(found)


def print_change(found: dict[str, Any], verb: str, attributes: Iterable[str], *, as_json: bool) -> None:
    """Print an object that was created or updated: as JSON all of it, else what was set."""
    if wants_json(as_json):
        print_json(found)
        return
    click.echo(f"{found['kind']} {found['name']} {verb}d")
    set_now = {name: found[name] for name in attributes if name in found}
    if set_now:
        print_exactly(set_now)


vpn = make_group("vpn", "Message VPNs: separate worlds of topics, users and limits.")
username = make_group("username", "Client usernames: who may connect, with which profiles.")
profile = make_group("profile", "Client profiles: what a client may use, and its limits.")
acl = make_group("acl", "ACL profiles: the addresses, topics and share names that a client may use.")
template = make_group("template", "Templates: attributes of the endpoints that clients create.")
