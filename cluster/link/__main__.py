"""`python -m cluster.link --runtime DIR --index I --incarnation K` runs link number I."""

from cluster.link.link import Link
from cluster.relay.shell import run

if __name__ == "__main__":
    run(Link)
