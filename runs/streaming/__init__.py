"""Live streams of runs, workspaces and owners as server-sent events."""
