"""Questions and answers: REQUEST of a client, and what the controller is asked."""
