"""`python -m router --runtime DIR --incarnation K` runs the router process."""

from router.server import main

if __name__ == "__main__":
    main()
