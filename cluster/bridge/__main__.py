"""`python -m cluster.bridge`: a bridge process, started by the supervisor."""

from cluster.bridge.server import main

if __name__ == "__main__":
    main()
