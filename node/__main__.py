"""Start a worker: `python -m node --runtime DIR --index I --incarnation K`, as the supervisor does."""

from node.server import main

if __name__ == "__main__":
    main()
