"""Logins to the admin that failed, or are just being looked at."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class LoginAttempt(models.Model):
    """One login that did not succeed. What was typed as a name may be a password: it is hashed."""

    address = models.CharField(max_length=64)
    account = models.CharField(max_length=64, help_text="SHA-256 of the name, in hex.")
    at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [
            models.Index(fields=["address", "at"], name="login_attempt_address"),
            models.Index(fields=["account", "at"], name="login_attempt_account"),
        ]

    def __str__(self) -> str:
        return f"{self.address} at {self.at}"
