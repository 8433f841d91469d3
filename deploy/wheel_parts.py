"""Puts the parts of the server and its documentation into a wheel, for the build of `angarium-server`.

In the repository `cluster/`, `gateway/`, `node/`, `router/` and `storage/` are top folders; names like these must
not be in anybody's site-packages, so they go to `angarium_server/parts`, and the pages of `docs/` to
`angarium_server/docs`, where `angarium docs` finds them. An editable installation keeps both where they are.
`angarium_server.launch` knows where. The README in the metadata, which an index shows without the files beside it,
links to the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PARTS = ("cluster", "gateway", "node", "router", "storage")


class PartsHook(BuildHookInterface[Any]):
    """Moves the parts, unless the installation is editable."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Say where each part is put, and each page."""
        if version != "editable":
            self.build_config.target_config["sources"] = {
                part: f"angarium_server/parts/{part}" for part in PARTS
            }
            docs = Path(self.root) / "docs"
            for page in docs.rglob("*.md"):
                build_data["force_include"][str(page)] = (
                    f"angarium_server/docs/{page.relative_to(docs).as_posix()}"
                )


class ReadmeHook(MetadataHookInterface):
    """Gives the README to the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Make the links to files absolute."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        files = f"{metadata['urls']['Homepage']}/blob/main/"
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": re.sub(r"\]\((?!https?:|#)", f"]({files}", text),
        }
