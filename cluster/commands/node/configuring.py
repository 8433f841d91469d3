"""`angarium config`: the file of a node, and the objects that operators create, declared in files.

Checking a file is done by `cluster.configuration.config`, applying one by the controller, as one change or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from angarium import errors
from cluster.commands.connecting.connection import AdminOptions, admin_options
from cluster.commands.terminal.confirming import confirm, yes_option
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.options import FILE
from cluster.commands.terminal.output import Output, list_option, output_option, print_json, print_json_lines
from cluster.commands.terminal.table import cell

if TYPE_CHECKING:
    from pathlib import Path

#: Of `config plan`: there is something to do, as with `terraform plan -detailed-exitcode`.
EXIT_CHANGES: Final = 2


@click.group(cls=SuggestingGroup)
def config() -> None:
    """Configuration: the file of the node, and the objects that operators create."""


@config.command("show")
@click.option("--defaults", is_flag=True, help="Print every key with its default and meaning.")
@output_option
@admin_options
def show_config(*, admin: AdminOptions, defaults: bool, out: Output) -> None:
    """Print the configuration of the running node as TOML, or every default."""
    if defaults:
        from cluster.configuration.config import show_defaults

        click.echo(show_defaults(), nl=False)
        return
    found = admin.call("config.show")
    if out.is_json:
        print_json(found)
        return
    import msgspec

    from cluster.configuration import config as node_config

    click.echo(node_config.show_config(msgspec.convert(found, node_config.NodeConfig)), nl=False)


@config.command("check")
@click.argument("file", type=FILE)
@output_option
def check_config_file(*, file: Path, out: Output) -> int:
    """Check a configuration file and report every fault, and what is to be seen to, as a certificate that has ended."""
    from cluster.configuration.concerns import concerns_of
    from cluster.configuration.config import check_config, load_config

    faults = check_config(file)
    concerns = [] if faults else concerns_of(load_config(file))
    for fault in faults:
        click.echo(f"error {errors.INVALID_CONFIGURATION}: {file}: {fault}", err=True)
    for concern in concerns:
        click.echo(f"warning: {concern}", err=True)
    if out.is_json or not faults:
        told = {"file": str(file), "good": not faults, "faults": faults, "warnings": concerns}
        out.done(f"{file} is good", told)
    return 1 if faults else 0


@config.command("export")
@list_option
@admin_options
def export_objects(*, admin: AdminOptions, out: Output) -> None:
    """Print the objects of the node as TOML that 'config apply' reads; password hashes are in it."""
    found = admin.call("config.export")
    if out.is_json:
        print_json_lines(
            {"kind": kind, "vpn": vpn, "name": name, "attributes": attributes}
            for kind, vpn, name, attributes in found
        )
        return
    from cluster.configuration.config import export_config

    click.echo(export_config(found), nl=False)


#: What `--prune` takes along.
_prune_option = click.option(
    "--prune", is_flag=True, help="Also delete what operators made and FILE does not name, with all it holds."
)


@config.command("plan")
@click.argument("file", type=FILE)
@_prune_option
@list_option
@admin_options
def plan_config(*, admin: AdminOptions, file: Path, prune: bool, out: Output) -> int:
    """Show what 'config apply' would change: exit code 0 means nothing, 2 something, 1 that it would be refused."""
    planned = [
        row for row in _applied(admin, file, dry_run=True, prune=prune) if row["action"] != "unchanged"
    ]
    _print_changes(planned, out, empty=f"the node is as {file} says")
    return EXIT_CHANGES if planned else 0


@config.command("apply")
@click.argument("file", type=FILE)
@click.option("--dry-run", is_flag=True, help="Only report what would change.")
@_prune_option
@yes_option
@list_option
@admin_options
def apply_config(
    *, admin: AdminOptions, file: Path, dry_run: bool, prune: bool, yes: bool, out: Output
) -> None:
    """Create and update the objects of a file, all or none; what it does not name stays, unless you say --prune."""
    if prune and not dry_run:
        planned = _applied(admin, file, dry_run=True, prune=True)
        gone = [f"{row['kind']} {row['name']}" for row in planned if row["action"] == "delete"]
        if gone:
            others = f" and {len(gone) - 1} more ('angarium config plan {file} --prune' lists them)"
            confirm(f"delete {gone[0]}{others if len(gone) > 1 else ''}, with all they hold", yes=yes)
    done = _applied(admin, file, dry_run=dry_run, prune=prune)
    _print_changes(done, out, empty=f"{file} holds no objects")


def _applied(admin: AdminOptions, file: Path, *, dry_run: bool, prune: bool) -> list[dict[str, Any]]:
    from cluster.configuration.config import parse_objects

    objects = parse_objects(file.read_text(encoding="utf-8"), file.parent)
    _hash_passwords(admin, objects)
    done: list[dict[str, Any]] = admin.call("config.apply", objects=objects, dry_run=dry_run, prune=prune)
    return done


def _hash_passwords(admin: AdminOptions, objects: list[list[Any]]) -> None:
    """Put hashes in place of passwords: the node would do nothing else while it makes those of many.

    Raises:
        InvalidRequestError: one cannot be a password (40015).
    """
    from cluster.objects import convert_declared
    from cluster.security import passwords

    plain = {}
    for kind, vpn, name, attributes in objects:
        password = attributes.get("password", "")
        if password and not passwords.is_hash(password):
            convert_declared(kind, {"password": password})
            plain[kind, vpn or "", name] = password
    if not plain:
        return
    found = admin.call("config.export")
    stored = {(kind, vpn or "", name): given.get("password", "") for kind, vpn, name, given in found}
    hashes = passwords.hashes_of(plain, stored)
    for kind, vpn, name, attributes in objects:
        if hashed := hashes.get((kind, vpn or "", name)):
            attributes["password"] = hashed


def _print_changes(rows: list[dict[str, Any]], out: Output, *, empty: str) -> None:
    out.rows(
        rows,
        ("name", "kind", "vpn", "action", "changes"),
        empty=empty,
        readable=lambda row: {**row, "changes": _changes(row)},
    )


def _changes(row: dict[str, Any]) -> str:
    """Say what became of an object: of a new one what is not as ever, of another one before and after."""
    from cluster.objects import differing

    changes = row["changes"]
    if row["action"] == "create":
        made = {name: after for name, (_, after) in changes.items()}
        return "; ".join(f"{name} = {cell(value)}" for name, value in differing(row["kind"], made).items())
    return "; ".join(f"{name}: {cell(before)} -> {cell(after)}" for name, (before, after) in changes.items())
