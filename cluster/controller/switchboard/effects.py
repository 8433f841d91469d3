"""What the controller wants done: the effects that `cluster/controller/server.py` carries out, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

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


@dataclass(frozen=True, slots=True)
class Commit:
    """Make these changes durable; then say `committed` or `not_committed` before anything else."""

    number: int
    changes: list[Entry]


@dataclass(frozen=True, slots=True)
class Judge:
    """Have a question judged for itself: the store refused the transaction that it shared with others."""

    question: Asked


@dataclass(frozen=True, slots=True)
class CopyStore:
    """Write a copy of the config store into a directory, made for it; then say `copied` or `not_copied`."""

    number: int
    directory: str


@dataclass(frozen=True, slots=True)
class CheckStore:
    """Read every record of the config store; then say `checked`, with what is wrong."""

    number: int


@dataclass(frozen=True, slots=True)
class ReadCopy:
    """Answer an admin request with a piece of a file: `{"data", "size"}`, the size being that of the file."""

    asker: bytes
    number: int
    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class DropCopy:
    """Remove a directory that a `CopyStore` made, with all that is in it."""

    directory: str


@dataclass(frozen=True, slots=True)
class Request:
    """Ask a process; a failure to send is `unanswered`."""

    identity: bytes
    number: int
    operation: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer an admin request."""

    asker: bytes
    number: int
    ok: bool
    value: Any


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer what a process asked."""

    identity: bytes
    number: int
    ok: bool
    value: Any


@dataclass(frozen=True, slots=True)
class Record:
    """Append an event to the file."""

    event: Event


@dataclass(frozen=True, slots=True)
class WriteDown:
    """Append a line to the audit log, before anything else."""

    line: bytes


@dataclass(frozen=True, slots=True)
class FetchKeys:
    """Ask the address of an issuer for its keys; then `IssuerKeys.fetched`."""

    issuer: TokenIssuer


@dataclass(frozen=True, slots=True)
class ReloadCertificate:
    """Read the certificate of the admin API again, if it has one; then `reloaded`. Nobody may wait for it."""

    #: Of who asked; 0: nobody did.
    number: int = 0


@dataclass(frozen=True, slots=True)
class UseVault:
    """Sign and keep what joining needs; then `vault_used` or `vault_refused`, before anything else."""

    number: int
    work: VaultWork


@dataclass(frozen=True, slots=True)
class SetLogLevel:
    """Change what the controller itself logs."""

    level: str


@dataclass(frozen=True, slots=True)
class StopNode:
    """Ask the supervisor to stop the node."""


@dataclass(frozen=True, slots=True)
class SwitchOver:
    """Ask the keeper of this host, which is this process, to hand over to the standby."""

    pid: int


@dataclass(frozen=True, slots=True)
class ScaleNode:
    """Ask the supervisor for another number of workers."""

    workers: int


@dataclass(frozen=True, slots=True)
class RunProcesses:
    """Ask the supervisor for the processes of a role with these indices, and no others."""

    role: str
    indices: list[int]


Effect = (
    Commit
    | Judge
    | CopyStore
    | CheckStore
    | ReadCopy
    | DropCopy
    | Request
    | Reply
    | Answer
    | Record
    | WriteDown
    | ReloadCertificate
    | FetchKeys
    | UseVault
    | SetLogLevel
    | StopNode
    | SwitchOver
    | ScaleNode
    | RunProcesses
)
