"""What the memory of large batches costs a client."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

#: Three batches at a time, as when one is taken apart while the next ones come; prints the pages that were made.
BATCHES = """
import resource, sys
if sys.argv[1]:
    __import__(sys.argv[1])
held = [bytearray(400_000) for _ in range(3)]
del held
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    held = [bytearray(400_000) for _ in range(3)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_made(module: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", BATCHES, module], capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have rules of their own")
def test_the_memory_of_a_batch_is_kept_for_the_next_one() -> None:
    assert pages_made("angarium.client.transport.zmtp") < 1_000
    assert pages_made("") > 10_000, "a process without the SDK has its pages made again and again"
