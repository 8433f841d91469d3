"""The simulation of guaranteed messaging: producers, endpoints, flows, homes and disks, and how runs are judged."""
