"""Logins by token (JWT): the issuers that are trusted, their keys, signatures, and what claims mean."""
