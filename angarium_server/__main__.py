"""`python -P -m angarium_server` is the `angarium` command."""

from angarium_server.launch import main

main()
