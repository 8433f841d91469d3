"""The session of a gateway that says what it is told to: frames by hand on a real socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from angarium import wire
from cluster.data.node_file import read_node_file
from tests.integration.raw_client import RECEIVE_S, Frame, RawClient

if TYPE_CHECKING:
    import zmq

    from angarium_server.testing import Node


class Inside(NamedTuple):
    """What a client of a gateway is told."""

    operation: bytes
    header: Any
    batches: list[bytes]


class RawGateway(RawClient):
    """The session of a gateway."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], node: Node, index: int = 0) -> None:
        runtime = Path(read_node_file(node.data).runtime)
        super().__init__(context, f"ipc://{runtime}/links")
        self.secret = json.loads((runtime / "router.json").read_text())["identity"]["local_secret"]
        who = {"name": "test", "index": index, "incarnation": 1}
        self.hello(username=wire.GATEWAY_USERNAME, behalf={"secret": self.secret}, gateway=who)

    def receive(self, timeout_s: float = RECEIVE_S) -> Frame:
        """Give the next multipart; the header of one for a client is his number."""
        assert self.socket.poll(int(timeout_s * 1000)), "the router said nothing"
        operation, header, *batches = self.socket.recv_multipart()
        number = int.from_bytes(header, "big")
        return Frame(operation, number if operation == wire.ATTACHED else wire.unpack(header), batches)

    def say(self, number: int, operation: bytes, header: Any) -> None:
        """Send what a client says."""
        self.socket.send_multipart([wire.ATTACHED, number.to_bytes(8, "big"), operation, wire.pack(header)])

    def told(self, number: int) -> Inside:
        """Give the next thing that a client is told, and nobody else is."""
        _, found, (operation, header, *batches) = self.receive_only(wire.ATTACHED)
        assert found == number
        return Inside(operation, wire.unpack(header), batches)

    def attach(self, number: int, **fields: Any) -> Inside:
        """Attach a client, and give the answer."""
        behalf = {"secret": self.secret, "address": "127.0.0.1", "takes_over": True}
        hello = {"version": 1, "vpn": "default", "unroutable": True, "behalf": behalf}
        self.say(number, wire.HELLO, {**hello, **fields})
        return self.told(number)

    def ask(self, number: int, *filters: str) -> list[Any]:
        """Subscribe for a client, and give the answer for each filter."""
        self.say(
            number, wire.SUBSCRIBE, [1, [[text, wire.SUBSCRIBE_DELIVER_ALWAYS] for text in filters], None]
        )
        operation, (_, answers, _), _ = self.told(number)
        assert operation == wire.SUBACK
        return list(answers)

    def topics(self) -> list[str]:
        """Give the topics of the next messages that come for its clients together."""
        (batch,) = self.receive_only(wire.DELIVER).batches
        return [one[wire.ROW_TOPIC] for one in wire.unpack(batch)]
