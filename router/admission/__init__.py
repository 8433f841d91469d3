"""What endpoints take of what is published: accounts and limits, admission, and the streams to the homes."""
