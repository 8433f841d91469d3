"""What the processes of a node are told of its standby, and what a host of a pair says of itself in a file."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

import msgspec

from angarium_server.process import KEEPER_VARIABLE
from cluster.admin.answers import HostStatus
from cluster.configuration.config import read_password_file
from cluster.data.node_file import HOST_STATUS_FILE, process_runs
from storage.shipping.settings import StandbySettings

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.configuration.config import NodeConfig

#: Has a primary hand over to its standby.
SWITCH_SIGNAL: Final = signal.SIGUSR1


def read_status(data: Path) -> HostStatus | None:
    """Give what the host of a pair that runs on a data directory says of itself; None: none runs."""
    try:
        status = msgspec.json.decode((data / HOST_STATUS_FILE).read_bytes(), type=HostStatus)
    except (OSError, msgspec.DecodeError):
        return None
    return status if process_runs(status.pid, status.pid_start) else None


def waits_because(status: HostStatus) -> str:
    """Say why a standby that follows nobody does not take over either; empty: it follows, or may at any moment."""
    if status.follows:
        return ""
    if status.fault:
        return status.fault
    if status.refusal:
        return f"a primary calls, and is not followed: {status.refusal}"
    if status.failure:
        return f"the outside store does not answer: {status.failure}"
    if status.primary and status.in_sync and status.host not in status.in_sync:
        others = " and ".join(status.in_sync)
        lacks = f"{others} has everything, is not heard, and may have what host {status.host} lacks"
        return f"{lacks}: start that one, or, if it is lost for good, 'angarium standby promote --force' here"
    return ""


def standby_of(config: NodeConfig, data_id: str) -> StandbySettings | None:
    """Give what a process of this node is told of its standby; None: no keeper started the node."""
    return shipping_settings(config, data_id) if KEEPER_VARIABLE in os.environ else None


def shipping_settings(config: NodeConfig, data_id: str) -> StandbySettings:
    """Give where the standby is, and what shows it who we are."""
    section = config.standby
    return StandbySettings(
        peer=section.peer,
        node=config.node.name,
        data_id=data_id,
        secret=read_password_file(section.secret_file),
        tls_files={
            "ca_file": config.cluster.ca_file,
            "cert_file": config.router.tls_cert_file,
            "key_file": config.router.tls_key_file,
        },
        server_name=section.peer_name,
    )
