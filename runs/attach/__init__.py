"""Terminals and pipes of running programs over one WebSocket: output, input and control."""
