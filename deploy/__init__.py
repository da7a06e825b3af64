"""Everything that turns a checkout into a running system. See deploy/README.md."""
