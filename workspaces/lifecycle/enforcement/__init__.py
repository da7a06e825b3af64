"""What holds workspaces to their limits on each engine: networks, disk, what the kernel shares."""
