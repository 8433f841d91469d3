"""`angarium version` and `angarium help`: what is installed, and how a command is used."""

from __future__ import annotations

import platform

import click

from cluster.commands.terminal.output import Output, output_option


@click.command()
@output_option
def version(*, out: Output) -> None:
    """Print the versions of the server, of the SDK beside it, and of what they write and speak."""
    import angarium
    import angarium_server
    from angarium import wire
    from angarium_server.launch import is_compiled
    from cluster.data.data_dir import NODE_FORMAT
    from storage import config_file, spool

    out.one(
        {
            "server": angarium_server.__version__,
            "sdk": angarium.__version__,
            "python": platform.python_version(),
            "compiled": is_compiled(),
            "client_protocol": wire.PROTOCOL_VERSION,
            "data_directory_format": NODE_FORMAT,
            "config_store_format": int(config_file.FORMAT_VERSION),
            "spool_format": int(spool.FORMAT_VERSION),
        }
    )


@click.command("help")
@click.argument("command", metavar="[COMMAND]...", nargs=-1)
def show_help(*, command: tuple[str, ...]) -> None:
    """Show how COMMAND is used, as COMMAND --help does."""
    root = click.get_current_context().find_root().command
    root.main(args=[*command, "--help"], prog_name="angarium", standalone_mode=False)
