"""Whose the registry's repositories are that sandboxes publish to."""

from __future__ import annotations

from typing import Any

from django.db import connection, models
from django.db.models.functions import Now

from controlplane.database.ids import OWNER_MAX_LENGTH, uuid7

_CLAIM = """
WITH known AS (
    SELECT owner_user_id FROM workspaces_publishedrepository
    WHERE registry_id = %(registry)s AND name = %(name)s
),
made AS (
    INSERT INTO workspaces_publishedrepository (id, registry_id, name, owner_user_id)
    SELECT %(id)s, %(registry)s, %(name)s, %(owner)s WHERE NOT EXISTS (SELECT FROM known)
    ON CONFLICT (registry_id, name) DO NOTHING
    RETURNING owner_user_id
)
SELECT owner_user_id FROM known UNION ALL SELECT owner_user_id FROM made
"""


class PublishedRepositoryQuerySet(models.QuerySet["PublishedRepository"]):
    """Questions and claims of repositories."""

    def owner_of(self, registry_id: str, name: str) -> str | None:
        """Return whose a repository is; None when nobody has published to it."""
        found = self.filter(registry_id=registry_id, name=name)
        return found.values_list("owner_user_id", flat=True).first()

    def claim(self, registry_id: str, name: str, *, owner_user_id: str) -> bool:
        """Give the repository to this owner unless somebody has it; True when it is theirs.

        Of any number of owners at once one gets it.
        """
        given: dict[str, Any] = {
            "id": uuid7(),
            "registry": registry_id,
            "name": name,
            "owner": owner_user_id,
        }
        owner = None
        while owner is None:
            # Nobody's: another one has got it a moment ago, and the next statement sees that one.
            with connection.cursor() as cursor:
                cursor.execute(_CLAIM, given)
                (owner,) = cursor.fetchone() or (None,)
        return bool(owner == owner_user_id)


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
