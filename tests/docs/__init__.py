"""The documentation: what its pages show is typed into a shell, what they point to is there."""
