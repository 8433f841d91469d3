"""`python -m angarium` runs the `angarium` command, which the server brings; without it, says how to install it.

The SDK knows no server: it only looks whether one is installed beside it, and becomes its process.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from angarium import errors


def main() -> None:
    """Run the command with the arguments of this process."""
    if find_spec("angarium_server") is None:
        advice = f"run: {sys.executable} -m pip install 'angarium[server]'; in a clone: ./sdk ."
        sys.exit(
            str(errors.error_for(errors.NOT_INSTALLED, "the command comes with angarium-server", advice))
        )
    # -P: what lies in the working directory is not ours.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "angarium_server", *sys.argv[1:]])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
