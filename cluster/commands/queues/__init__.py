"""Commands of operators about endpoints, what they hold, stages, and the spool."""
