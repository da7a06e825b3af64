"""The viewsets of runs, of commands in a workspace, and of streams."""
