"""The bridge process: takes messages from a remote Message VPN, and publishes them in its own."""
