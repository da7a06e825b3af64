"""Passwords of test accounts, hashed in no time."""

from __future__ import annotations

from django.contrib.auth.hashers import PBKDF2PasswordHasher


class QuickHasher(PBKDF2PasswordHasher):
    """Django's own hasher with few iterations: the usual million takes a quarter of a second."""

    iterations = 1_000
