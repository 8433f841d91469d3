"""`python -m cluster.link --runtime DIR --index I --incarnation K` runs a link process."""

from cluster.link.server import main

if __name__ == "__main__":
    main()
