"""The set-up: `python3 -m deploy.up <command>`. Standard library only."""
