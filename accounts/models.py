"""SSH keys: who may enter, and as whom."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from controlplane.ids import OWNER_MAX_LENGTH, uuid7

NAME_MAX_LENGTH = 120


class SshKeyQuerySet(models.QuerySet["SshKey"]):
    """SSH keys that belong to an owner, and those that still open something."""

    def owned_by(self, owner_user_id: str | None) -> SshKeyQuerySet:
        """Keep the keys of one owner; of everybody when the caller names none."""
        return self if owner_user_id is None else self.filter(owner_user_id=owner_user_id)

    def active(self) -> SshKeyQuerySet:
        """Keep the keys that were not deleted."""
        return self.filter(deleted_at__isnull=True)

    def revoke(self) -> int:
        """Delete the keys that are active; returns how many they were."""
        return self.active().update(deleted_at=Now())


class SshKey(models.Model):
    """A public key that an owner enters workspaces with.

    ::

        active ⇄ deleted      (the owner who registers a deleted key again revives its row)

    A fingerprint is active at most once, whoever owns it, so it tells one owner. Deleting frees it
    for everybody.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    owner_user_id = models.CharField(max_length=OWNER_MAX_LENGTH)
    name = models.CharField(max_length=NAME_MAX_LENGTH)
    algorithm = models.CharField(max_length=64)
    public_key = models.TextField(help_text="Algorithm and base64, without the comment.")
    fingerprint = models.CharField(max_length=64, help_text="As ssh-keygen -lf shows it.")
    created_at = models.DateTimeField(auto_now_add=True)
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects = SshKeyQuerySet.as_manager()

    class Meta:
        verbose_name = "SSH key"
        indexes = [
            models.Index(
                fields=["owner_user_id", "-id"],
                name="ssh_key_owner",
                condition=Q(deleted_at__isnull=True),
            )
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["fingerprint"],
                condition=Q(deleted_at__isnull=True),
                name="ssh_key_active_once",
            ),
            models.UniqueConstraint(
                fields=["fingerprint", "owner_user_id"], name="ssh_key_once_an_owner"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.fingerprint})"
