"""Several real nodes, joined by links, for tests."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from angarium_server.testing import Node
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

SECRET = "correct horse battery staple"
LINK_TIMEOUT_S = 20.0
Row = dict[str, Any]


class Mesh:
    """Nodes named a, b, c ..., in processes of their own; a context manager that stops them."""

    def __init__(self, folder: Path, count: int, *, workers: int = 1, cluster: str = "test") -> None:
        self.folder = folder
        self.names = [chr(ord("a") + number) for number in range(count)]
        self.nodes = {name: self.make(name, workers=workers, cluster=cluster) for name in self.names}
        self._stack = ExitStack()

    def make(
        self,
        name: str,
        *,
        workers: int = 1,
        cluster: str = "test",
        secret: str = SECRET,
        more: str = "",
        listen: str | None = "tcp://127.0.0.1:0",
    ) -> Node:
        """Make a node that is not started; `more` is added to its configuration, behind the section of the cluster."""
        secret_file = self.folder / f"{name}.secret"
        secret_file.write_text(secret + "\n", encoding="utf-8")
        config = self.folder / f"{name}.toml"
        config.write_text(
            f'[node]\nname = "{name}"\n[cluster]\nname = "{cluster}"\nsecret_file = "{secret_file}"\n{more}\n',
            encoding="utf-8",
        )
        return Node(self.folder / name, workers=workers, listen=listen, config=config)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def __enter__(self) -> Self:
        for node in self.nodes.values():
            self._stack.enter_context(node)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, value, trace)

    def add(self, name: str, node: Node) -> None:
        """Start one more node."""
        self.nodes[name] = self._stack.enter_context(node)

    def join(self, *pairs: Sequence[str]) -> None:
        """Create the links between pairs of nodes on both sides, and wait until they are up; all pairs without any."""
        wanted = pairs or [(one, two) for one in self.names for two in self.names if one < two]
        for one, two in wanted:
            self.create(one, two)
            self.create(two, one)
        for one, two in wanted:
            self.wait_up(one, two)
            self.wait_up(two, one)

    def create(self, here: str, there: str, *more: str) -> None:
        """Create the link of a node to another."""
        settings = [f"addresses={self.nodes[there].url}", *more]
        self.nodes[here].run("link", "create", there, *[part for one in settings for part in ("--set", one)])

    def link(self, here: str, there: str) -> Row:
        """Give what `link show` says."""
        found: Row = json.loads(self.nodes[here].run("link", "show", there, "--json"))
        return found

    def wait_up(self, here: str, there: str) -> Row:
        """Wait until a link is up."""
        return self.wait_for(here, there, lambda row: row["state"] == "up")

    def wait_for(self, here: str, there: str, condition: Callable[[Row], Any]) -> Row:
        """Look at a link until a condition holds for it."""

        def output() -> str:
            return "\n".join(node.output()[-3000:] for node in self.nodes.values())

        return wait_for(lambda: self.link(here, there), condition, f"link {here} -> {there}", more=output)

    def events(self, here: str, name: str) -> list[Row]:
        """Give the events of a node that have a name."""
        lines = self.nodes[here].run("events", "--json").splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]
