"""Puts the parts of the server and its documentation into a wheel, for the build of `angarium-server`.

In the repository `cluster/`, `gateway/`, `node/`, `router/` and `storage/` are top folders; names like these must
not be in anybody's site-packages, so they go to `angarium_server/parts`, and the pages of `docs/` to
`angarium_server/docs`, where `angarium docs` finds them. An editable installation keeps both where they are.
`angarium_server.launch` knows where. The README in the metadata, which an index shows without the files beside it,
links to the repository.

With ANGARIUM_COMPILE=1 the wheel is one for this Python and this platform: the libraries that `compiling` makes of some
modules lie beside them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PARTS = ("cluster", "gateway", "node", "router", "storage")


class PartsHook(BuildHookInterface[Any]):
    """Moves the parts, unless the installation is editable."""

    #: Libraries of compiled modules, until they are in the wheel.
    _libraries: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """Give what the build needs besides, if it is to compile: also that whose types the modules use."""
        if not self._compiles:
            return []
        used = [one for one in self.metadata.core.dependencies if not one.startswith("angarium==")]
        return [*self._compiling().REQUIRES, *used]

    @property
    def _compiles(self) -> bool:
        return os.environ.get("ANGARIUM_COMPILE") == "1"

    def _compiling(self) -> Any:
        """Give the module beside this one, which is in no package."""
        spec = importlib.util.spec_from_file_location(
            "compiling", Path(self.root) / "deploy" / "compiling.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

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
            if self._compiles:
                self._compile(build_data)

    def _compile(self, build_data: dict[str, Any]) -> None:
        """Put a library beside each module that is to be compiled."""
        self._libraries = tempfile.TemporaryDirectory(prefix="angarium-libraries-")
        target = Path(self._libraries.name)
        for library in self._compiling().compile_into(Path(self.root), target):
            folder = "angarium_server/parts/" if library.parts[0] in PARTS else ""
            build_data["force_include"][str(target / library)] = f"{folder}{library.as_posix()}"
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, _version: str, _build_data: dict[str, Any], _artifact_path: str) -> None:
        """Forget the libraries, which are in the wheel."""
        if self._libraries is not None:
            self._libraries.cleanup()


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
