"""`python -m cluster.management --runtime DIR --index I --incarnation K` runs the management process."""

from cluster.management.server import main

if __name__ == "__main__":
    main()
