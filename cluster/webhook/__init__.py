"""The process of webhooks: its role, and the shell around what `gateway.http.webhooks` decides."""
