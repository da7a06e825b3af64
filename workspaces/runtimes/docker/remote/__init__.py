"""Engines on other machines: their folders, and TLS on the way to them."""
