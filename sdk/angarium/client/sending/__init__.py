"""Publishing guaranteed messages: producers, what they hold until it is settled, and receipts."""
