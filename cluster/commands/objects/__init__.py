"""Commands about objects and clients."""
