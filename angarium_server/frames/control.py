"""The frames between the processes of a node and its supervisor and controller: one array each, its name first."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - msgspec reads the types of fields
from typing import Annotated, Any, ClassVar, Final

from angarium_server.frames.frame import Record, about, encode

TO_SUPERVISOR: Final = "to the supervisor"
FROM_SUPERVISOR: Final = "from the supervisor"
TO_CONTROLLER: Final = "to the controller"
FROM_CONTROLLER: Final = "from the controller"


class Control(Record):
    """A frame of these conversations."""

    #: Where it goes, in words.
    direction: ClassVar[str]

    def packed(self) -> bytes:
        """Give it as it goes over a socket."""
        return encode(self)


# -- supervisor --------------------------------------------------------------------------------------------------


class Heartbeat(Control, tag="heartbeat"):
    """A process is alive; every 0.5 s."""

    direction: ClassVar[str] = TO_SUPERVISOR

    role: Annotated[str, about("`router`, `worker`, `controller` or another kind of process")]
    index: Annotated[int, about("which of its role it is")]
    incarnation: Annotated[int, about("of the process")]
    state: Annotated[str, about("`starting`, `ready` or `stopping`")]
    progress: Annotated[str, about("what a start is busy with; empty: with nothing")]
    info: Annotated[
        dict[str, Any],
        about(
            'the router\'s `{"urls": [...], "workers": n}`, the controller\'s `{"supervisor_events": n, "health": url}`'
        ),
    ]


class StopNode(Control, tag="stop"):
    """The node is to stop, as a graceful shutdown; sent by the controller only."""

    direction: ClassVar[str] = TO_SUPERVISOR


class Scale(Control, tag="scale"):
    """The number of workers, now and for every later start; sent by the controller only."""

    direction: ClassVar[str] = TO_SUPERVISOR

    workers: Annotated[int, about("how many there are to be")]


class Processes(Control, tag="processes"):
    """There is to be a process for each of these indices, and for no other; sent by the controller only."""

    direction: ClassVar[str] = TO_SUPERVISOR

    role: Annotated[str, about("`link`, `bridge`")]
    indices: Annotated[list[int], about("which are wanted")]


class TableRow(Record):
    """One process of the node."""

    role: str
    index: int
    incarnation: int
    state: str
    pid: int


class Table(Control, tag="table"):
    """All processes of the node; on change and every second."""

    direction: ClassVar[str] = FROM_SUPERVISOR

    rows: Annotated[Sequence[TableRow], about("a row for every process")]
    node: Annotated[
        dict[str, Any],
        about('for the controller the map below, for the others `{"workers": n}`, the number that is wanted'),
    ]


# -- controller --------------------------------------------------------------------------------------------------


class Hello(Control, tag="hello"):
    """A process is there; every second."""

    direction: ClassVar[str] = TO_CONTROLLER

    role: Annotated[str, about("as in heartbeat")]
    index: Annotated[int, about("as in heartbeat")]
    incarnation: Annotated[int, about("of the process")]
    pid: Annotated[int, about("of the process")]


class Events(Control, tag="events"):
    """What happened in a turn, for the operators; kept by the process (up to 1,000) while the controller is away."""

    direction: ClassVar[str] = TO_CONTROLLER

    events: Annotated[
        list[dict[str, Any]],
        about("100 at most, the oldest first: `time`, `severity`, `scope`, `event`, `text` and more"),
    ]


class Ask(Control, tag="ask"):
    """What a client wants and only the controller can do; sent by the router only."""

    direction: ClassVar[str] = TO_CONTROLLER

    number: Annotated[int, about("comes back in answer")]
    operation: Annotated[str, about("see below")]
    arguments: Annotated[Any, about("see below")]


class Answer(Control, tag="answer"):
    """The answer to ask."""

    direction: ClassVar[str] = FROM_CONTROLLER

    number: Annotated[int, about("that of ask")]
    ok: Annotated[bool, about("false for a refusal")]
    value: Annotated[Any, about("the answer; of a refusal `[code, detail]`")]


class Request(Control, tag="request"):
    """What a process is to do."""

    direction: ClassVar[str] = FROM_CONTROLLER

    number: Annotated[int, about("comes back in reply")]
    operation: Annotated[str, about("see below")]
    arguments: Annotated[Any, about("see below")]


class Reply(Control, tag="reply"):
    """The answer to request."""

    direction: ClassVar[str] = TO_CONTROLLER

    number: Annotated[int, about("that of request")]
    ok: Annotated[bool, about("false for a refusal")]
    value: Annotated[Any, about("the answer; of a refusal `[code, detail]`")]


#: What a supervisor, and a controller, may be sent, and what a process may be sent by the controller.
ToSupervisor = Heartbeat | StopNode | Scale | Processes
ToController = Hello | Events | Ask | Reply
FromController = Request | Answer

#: In the order of the documentation.
SUPERVISOR_FRAMES: Final[tuple[type[Control], ...]] = (Heartbeat, StopNode, Processes, Scale, Table)
CONTROLLER_FRAMES: Final[tuple[type[Control], ...]] = (Hello, Events, Ask, Answer, Request, Reply)
