"""``svc mcp``: workspaces as tools of the Model Context Protocol."""
