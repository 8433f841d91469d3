"""The asyncio client: connection, session, publishing and subscriptions; `import angarium` has its public names."""
