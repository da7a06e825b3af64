"""Clients that generators make from ``openapi.json``, and the programs that use them."""
