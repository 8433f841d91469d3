"""Some nodes on this host, joined by links, for trying out: `scripts/mesh N --topology full|line|ring`.

Data, configuration and log of each node are in one folder, which is used again the next time. Ctrl-C stops everything.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from angarium_server.testing import Node, NodeFailedError
from cluster.security.authority import create_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Each node is five processes.
NODES_MAX: Final = 16
#: Commands at a time.
COMMANDS: Final = 4
LINK_TIMEOUT_S: Final = 30.0
TOPOLOGIES: Final = ("full", "line", "ring")

Pair = tuple[int, int]


def pairs_of(topology: str, count: int) -> list[Pair]:
    """Give the pairs of nodes that have a link, each once."""
    if topology == "full":
        return [(one, two) for one in range(count) for two in range(one + 1, count)]
    line = [(one, one + 1) for one in range(count - 1)]
    return [*line, (0, count - 1)] if topology == "ring" and count > 2 else line


class Trial:
    """The nodes and their links."""

    def __init__(self, folder: Path, count: int, workers: int, *, is_encrypted: bool = False) -> None:
        self._folder = folder
        names = [f"node-{number + 1}" for number in range(count)]
        made = create_cluster(folder, {name: [] for name in names})
        #: The authority that everybody who connects has to trust; None if connections are plain.
        self.ca_file = made[names[0]].authority_file if is_encrypted else None
        self.nodes = [self._make(name, workers) for name in names]

    def _make(self, name: str, workers: int) -> Node:
        text = f'[node]\nname = "{name}"\n[cluster]\nname = "trial"\nsecret_file = "cluster.secret"\n'
        listen = "tcp://127.0.0.1:0"
        if self.ca_file is not None:
            listen = "tls://127.0.0.1:0"
            text += f'ca_file = "{self.ca_file}"\n'
            text += f'[router]\ntls_cert_file = "{name}.pem"\ntls_key_file = "{name}.key"\n'
        config = self._folder / f"{name}.toml"
        config.write_text(text, encoding="utf-8")
        return Node(self._folder / name, workers=workers, listen=listen, config=config)

    def name(self, number: int) -> str:
        """Give the name of a node."""
        return self.nodes[number].data.name

    def join(self, pairs: Sequence[Pair], paths: Mapping[Pair, str] | None = None) -> None:
        """Make the links on both sides, those that are there already again, and wait until they are up.

        Args:
            pairs: of nodes, each once.
            paths: (who connects, to whom) -> the address to use instead of the one of that node.
        """

        def make(pair: Pair) -> None:
            here, there = pair
            name = self.name(there)
            settings = ["--set", f"addresses={(paths or {}).get(pair, self.nodes[there].url)}"]
            try:
                self.nodes[here].run("link", "create", name, *settings)
            except NodeFailedError:
                self.nodes[here].run("link", "update", name, *settings)

        with ThreadPoolExecutor(COMMANDS) as pool:
            list(pool.map(make, [*pairs, *((two, one) for one, two in pairs)]))
        deadline = time.monotonic() + LINK_TIMEOUT_S
        for here, there in pairs:
            while self.link(here, there)["state"] != "up":
                if time.monotonic() >= deadline:
                    sys.exit(
                        f"the link of {self.name(here)} to {self.name(there)} is {self.link(here, there)}"
                    )
                time.sleep(0.05)

    def link(self, here: int, there: int) -> dict[str, Any]:
        """Give what a node says of its link to another."""
        found: dict[str, Any] = json.loads(self.nodes[here].run("link", "show", self.name(there), "--json"))
        return found

    def describe(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        """Give what there is."""
        return {
            "nodes": [
                {
                    "node": node.data.name,
                    "url": node.url,
                    "data": str(node.data),
                    "ca_file": None if self.ca_file is None else str(self.ca_file),
                }
                for node in self.nodes
            ],
            "links": [[self.name(here), self.name(there)] for here, there in pairs],
            "verdict": "up",
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Start the nodes, say where they are, and stop them on a signal."""
    parser = argparse.ArgumentParser(
        prog="scripts/mesh", description="Some nodes on this host, joined by links."
    )
    parser.add_argument("nodes", type=int, help=f"2 to {NODES_MAX}")
    parser.add_argument("--topology", choices=TOPOLOGIES, default="full")
    parser.add_argument("--data", type=Path, default=Path("angarium-mesh"), help="folder of the nodes")
    parser.add_argument("--workers", type=int, default=1, help="worker processes of each node")
    parser.add_argument("--json", action="store_true", help="say where they are as one line of JSON")
    parser.add_argument("--once", action="store_true", help="stop as soon as everything is up")
    options = parser.parse_args(arguments)
    if not 2 <= options.nodes <= NODES_MAX:
        parser.error(f"{options.nodes} nodes: 2 to {NODES_MAX} are possible")
    pairs = pairs_of(options.topology, options.nodes)
    trial = Trial(options.data.absolute(), options.nodes, options.workers)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), ExitStack() as stack:
        with ThreadPoolExecutor(COMMANDS) as pool:
            list(pool.map(stack.enter_context, trial.nodes))
        print("the nodes are up, joining them", file=sys.stderr, flush=True)
        trial.join(pairs)
        tell(trial.describe(pairs), as_json=options.json)
        while not options.once:
            signal.pause()


def tell(found: dict[str, Any], *, as_json: bool) -> None:
    """Say where the nodes are."""
    if as_json:
        print(json.dumps(found), flush=True)
        return
    for node in found["nodes"]:
        print(f"{node['node']}: --url {node['url']} for clients, --data {node['data']} for operators")
    for here, there in found["links"]:
        print(f"{here} and {there} are joined")
    urls = {node["node"]: node["url"] for node in found["nodes"]}
    # Two that are joined: no message crosses a second link.
    one, other = found["links"][0]
    print(f"try: angarium sub --url {urls[one]} 'hello/>'", flush=True)
    print(f"and: angarium pub --url {urls[other]} hello/world hi", flush=True)
    print(f"and: angarium cluster status --data {found['nodes'][0]['data']}", flush=True)


if __name__ == "__main__":
    main()
