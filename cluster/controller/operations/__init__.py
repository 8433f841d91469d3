"""The operations of the admin API, by what they are about."""
