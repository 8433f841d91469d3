"""`python -m cluster.webhook --runtime DIR --index 0 --incarnation K` runs the process of webhooks."""

from cluster.webhook.server import main

if __name__ == "__main__":
    main()
