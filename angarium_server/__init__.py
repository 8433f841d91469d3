"""What the processes of a node share, and how they are started; the rest of the server stands on this.

It stays light: every pytest run in an environment with the server imports this package.
"""

__version__ = "0.1.0"
