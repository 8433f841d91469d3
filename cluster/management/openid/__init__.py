"""Logins in the browser by OpenID Connect."""
