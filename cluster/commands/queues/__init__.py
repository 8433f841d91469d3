"""The commands of operators for guaranteed messages: endpoints, what they hold, and the spool."""
