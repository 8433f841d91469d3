"""What a power failure must not take back: a file's bytes, and which files a directory holds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def sync_path(path: Path) -> None:
    """Make a file's bytes, or which files a directory holds, durable.

    Raises:
        OSError: it is not there, or the disk failed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
