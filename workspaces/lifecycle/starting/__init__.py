"""What a start asks for, what may be started, and how much of it."""
