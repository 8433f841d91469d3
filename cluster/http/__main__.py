"""`python -m cluster.http --runtime DIR --index 0 --incarnation K` runs the gateway process of HTTP."""

from cluster.http.server import main

if __name__ == "__main__":
    main()
