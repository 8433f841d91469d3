"""Who publishes guaranteed messages: producers, what is known of their sequences, and what they are told."""
