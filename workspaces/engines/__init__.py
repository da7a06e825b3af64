"""Reaching the engines of an installation: addresses, certificates, adapters."""
