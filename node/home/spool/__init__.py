"""What a home stores, how it is laid out, when it is written, and how it is read again."""
