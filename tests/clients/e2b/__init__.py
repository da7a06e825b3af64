"""E2B's own SDKs, unmodified, before a real facade."""
