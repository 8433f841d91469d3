"""What the SDK needs of others: no library of the servers."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, importlib, pkgutil, sys

for name in ("zmq", "lmdb", "click", "psutil", "cryptography"):
    sys.modules[name] = None  # an import of it fails

import angarium

for one in pkgutil.walk_packages(angarium.__path__, "angarium."):
    if not one.name.startswith(("angarium.spark", "angarium.pipeline")) and not one.name.endswith("__main__"):
        importlib.import_module(one.name)


async def connect() -> None:
    try:
        await angarium.connect("tcp://127.0.0.1:1", timeout_s=0.2)
    except angarium.ConnectionLostError as error:
        print(error.code)


asyncio.run(connect())
"""


def test_the_sdk_works_where_zmq_cannot_be_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "60003\n"), done.stderr
