"""Whose the registry's repositories are that sandboxes publish to."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from controlplane.database.ids import OWNER_MAX_LENGTH, uuid7


class PublishedRepositoryQuerySet(models.QuerySet["PublishedRepository"]):
    """Questions and claims of repositories."""

    def owner_of(self, registry_id: str, name: str) -> str | None:
        """Return whose a repository is; None when nobody has published to it."""
        found = self.filter(registry_id=registry_id, name=name)
        return found.values_list("owner_user_id", flat=True).first()

    def claim(self, registry_id: str, name: str, *, owner_user_id: str) -> bool:
        """Give the repository to this owner unless somebody has it; True when it is his.

        Of any number of owners at once one gets it.
        """
        owner = self.owner_of(registry_id, name)
        if owner is None:
            row = PublishedRepository(
                registry_id=registry_id, name=name, owner_user_id=owner_user_id
            )
            self.bulk_create([row], ignore_conflicts=True)
            owner = self.owner_of(registry_id, name)
        return owner == owner_user_id


class PublishedRepository(models.Model):
    """A repository of the registry, which belongs to the owner who first published to it.

    Only operators hand it over or free it, in the admin.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    registry_id = models.CharField(max_length=255)
    name = models.CharField(max_length=255)
    owner_user_id = models.CharField(max_length=OWNER_MAX_LENGTH)
    claimed_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = PublishedRepositoryQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "published repositories"
        constraints = [
            models.UniqueConstraint(fields=["registry_id", "name"], name="repository_owned_once")
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.owner_user_id}"
