"""Who is here and what they may do: login, rights, subscriptions, and what operators see and change."""
