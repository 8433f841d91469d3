"""What the memory of large batches costs a client."""

from __future__ import annotations

import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import angarium

#: Where the SDK is, and what it needs.
SDK = (str(Path(angarium.__file__).parents[1]), sysconfig.get_path("platlib"))
#: Eight batches at a time, as when the first is taken apart while the next ones come; prints the pages that were made.
BATCHES = """
import resource, sys
sys.path += sys.argv[1:]
if sys.argv[1:]:
    import angarium.client.transport.zmtp
held = [bytearray(400_000) for _ in range(8)]
del held
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    held = [bytearray(400_000) for _ in range(8)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_made(*path: str) -> int:
    """Count them in a process that has freed nothing large before: whatever it reads at its start may be that."""
    command = [sys.executable, "-I", "-S", "-c", BATCHES, *path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have rules of their own")
def test_the_memory_of_a_batch_is_kept_for_the_next_one() -> None:
    assert pages_made(*SDK) < 100
    assert pages_made() > 1_000, "a process without the SDK has its pages made again and again"
