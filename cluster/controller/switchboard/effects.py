"""What the controller wants done: the effects that `cluster/controller/server.py` carries out, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, dataclass_transform

import msgspec

if TYPE_CHECKING:
    from angarium_server.tokens.config import TokenIssuer
    from cluster.controller.switchboard.events import Event
    from cluster.join.vault import VaultWork
    from storage.config_store import Entry


class Asked(NamedTuple):
    """A question of a process: its identity, the number that the answer will bear, and what it asks."""

    identity: bytes
    number: int
    operation: str
    arguments: Any


@dataclass_transform(frozen_default=True)
class Effect(msgspec.Struct, frozen=True):
    """One of them."""


class Commit(Effect):
    """Make these changes durable; then say `committed` or `not_committed` before anything else."""

    number: int
    changes: list[Entry]


class Judge(Effect):
    """Have a question judged for itself: the store refused the transaction that it shared with others."""

    question: Asked


class CopyStore(Effect):
    """Write a copy of the config store into a directory, made for it; then say `copied` or `not_copied`."""

    number: int
    directory: str


class CheckStore(Effect):
    """Read every record of the config store; then say `checked`, with what is wrong."""

    number: int


class ReadCopy(Effect):
    """Answer an admin request with a piece of a file: `{"data", "size"}`, the size being that of the file."""

    asker: bytes
    number: int
    path: str
    offset: int
    length: int


class DropCopy(Effect):
    """Remove a directory that a `CopyStore` made, with all that is in it."""

    directory: str


class Request(Effect):
    """Ask a process; a failure to send is `unanswered`."""

    identity: bytes
    number: int
    operation: str
    arguments: Any


class Reply(Effect):
    """Answer an admin request."""

    asker: bytes
    number: int
    ok: bool
    value: Any


class Answer(Effect):
    """Answer what a process asked."""

    identity: bytes
    number: int
    ok: bool
    value: Any


class Record(Effect):
    """Append an event to the file."""

    event: Event


class WriteDown(Effect):
    """Append a line to the audit log, before anything else."""

    line: bytes


class FetchKeys(Effect):
    """Ask the address of an issuer for its keys; then `IssuerKeys.fetched`."""

    issuer: TokenIssuer


class ReloadCertificate(Effect):
    """Read the certificate of the admin API again, if it has one; then `reloaded`. Nobody may wait for it."""

    #: Of who asked; 0: nobody did.
    number: int = 0


class UseVault(Effect):
    """Sign and keep what joining needs; then `vault_used` or `vault_refused`, before anything else."""

    number: int
    work: VaultWork


class SetLogLevel(Effect):
    """Change what the controller itself logs."""

    level: str


class StopNode(Effect):
    """Ask the supervisor to stop the node."""


class SwitchOver(Effect):
    """Ask the keeper of this host, which is this process, to hand over to the standby."""

    pid: int


class ScaleNode(Effect):
    """Ask the supervisor for another number of workers."""

    workers: int


class RunProcesses(Effect):
    """Ask the supervisor for the processes of a role with these indices, and no others."""

    role: str
    indices: list[int]
