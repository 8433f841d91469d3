"""`python -m cluster.bridge --runtime DIR --index I --incarnation K` runs bridge number I."""

from cluster.bridge.bridge import Bridge
from cluster.relay.shell import run

if __name__ == "__main__":
    run(Bridge)
