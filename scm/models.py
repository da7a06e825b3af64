"""Installations of the source-hosting app, what they give access to, and the provider's events."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from controlplane.database.ids import OWNER_MAX_LENGTH, uuid7

LOGIN_MAX_LENGTH = 120
REPOSITORY_NAME_MAX_LENGTH = 250
BRANCH_MAX_LENGTH = 1024


class InstallationQuerySet(models.QuerySet["Installation"]):
    """Installations that an owner may use."""

    def granted_to(self, owner_user_id: str) -> InstallationQuerySet:
        """Keep the active installations that this owner was granted."""
        return self.filter(status=Installation.Status.ACTIVE, grants__owner_user_id=owner_user_id)


class Installation(models.Model):
    """The app, installed by an account of the provider on all or some of its repositories.

    ::

        active ⇄ suspended
           └────┴──→ deleted      (and back, should the provider know it again)

    The row repeats what the provider said at ``observed_at``, and its repositories what it said at
    ``synced_at``: database time *before* it was asked, so that of two answers the one that was
    asked for later stands, in whatever order they are stored.

    ``holder_user_id`` is the owner who imported it first. He keeps that name when an operator takes
    his grant away, so that importing again does not give it back.
    """

    class Status(models.TextChoices):
        ACTIVE = "active"
        SUSPENDED = "suspended"
        DELETED = "deleted"

    class AccountType(models.TextChoices):
        ORGANIZATION = "organization"
        USER = "user"

    class RepositorySelection(models.TextChoices):
        ALL = "all"
        SELECTED = "selected"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    external_id = models.PositiveBigIntegerField(unique=True, help_text="The provider's id.")
    account_id = models.PositiveBigIntegerField(help_text="The provider's id of the account.")
    account_login = models.CharField(max_length=LOGIN_MAX_LENGTH)
    account_type = models.CharField(max_length=16, choices=AccountType)
    repository_selection = models.CharField(max_length=16, choices=RepositorySelection)
    permissions = models.JSONField(default=dict, help_text="What the account lets the app do.")
    status = models.CharField(max_length=16, choices=Status, default=Status.ACTIVE)
    suspended_at = models.DateTimeField(null=True, blank=True)
    holder_user_id = models.CharField(
        max_length=OWNER_MAX_LENGTH, blank=True, help_text="Who imported it first."
    )
    observed_at = models.DateTimeField(help_text="When the provider was asked for this.")
    synced_at = models.DateTimeField(
        null=True, blank=True, help_text="When the provider was asked for the repositories."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = InstallationQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(status="suspended") | Q(suspended_at__isnull=True),
                name="installation_suspended_since",
            )
        ]

    def __str__(self) -> str:
        return f"{self.account_login} ({self.external_id})"


class InstallationGrant(models.Model):
    """Lets an owner use an installation, as long as that is active."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    installation = models.ForeignKey(Installation, on_delete=models.CASCADE, related_name="grants")
    owner_user_id = models.CharField(max_length=OWNER_MAX_LENGTH)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["owner_user_id"], name="installation_grant_owner")]
        constraints = [
            models.UniqueConstraint(
                fields=["installation", "owner_user_id"], name="installation_grant_once"
            )
        ]

    def __str__(self) -> str:
        return self.owner_user_id


class SourceRepository(models.Model):
    """A repository of the provider: the same one under whatever name and installation."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    external_id = models.PositiveBigIntegerField(unique=True, help_text="The provider's id.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "source repositories"

    def __str__(self) -> str:
        return str(self.external_id)


class InstallationRepositoryQuerySet(models.QuerySet["InstallationRepository"]):
    """Repositories that an installation still gives access to."""

    def present(self) -> InstallationRepositoryQuerySet:
        """Keep those that were there when the provider was last asked."""
        return self.filter(removed_at__isnull=True)


class InstallationRepository(models.Model):
    """What an installation shows of a repository.

    ``removed_at`` is set once the provider does not list it any more, and unset when it is back.
    Two rows may have one name for a moment: a repository that was removed keeps the name it had.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    installation = models.ForeignKey(
        Installation, on_delete=models.CASCADE, related_name="repositories"
    )
    repository = models.ForeignKey(
        SourceRepository, on_delete=models.PROTECT, related_name="shown_by"
    )
    owner_login = models.CharField(max_length=LOGIN_MAX_LENGTH)
    name = models.CharField(max_length=REPOSITORY_NAME_MAX_LENGTH)
    full_name = models.CharField(max_length=LOGIN_MAX_LENGTH + REPOSITORY_NAME_MAX_LENGTH + 1)
    default_branch = models.CharField(max_length=BRANCH_MAX_LENGTH)
    is_private = models.BooleanField()
    is_archived = models.BooleanField()
    pushed_at = models.DateTimeField(null=True, blank=True)
    synced_at = models.DateTimeField(help_text="When the provider was asked for this.")
    removed_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = InstallationRepositoryQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "installation repositories"
        indexes = [
            models.Index(
                fields=["installation", "-id"],
                name="installation_repository_list",
                condition=Q(removed_at__isnull=True),
            )
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["installation", "repository"], name="installation_repository_once"
            )
        ]

    def __str__(self) -> str:
        return self.full_name


class WebhookDelivery(models.Model):
    """An event that the provider told us of, once however often it was delivered.

    ::

        received → processed | ignored | failed
        failed → processed | ignored | failed       (delivered again)
    """

    class Status(models.TextChoices):
        RECEIVED = "received"
        PROCESSED = "processed"
        IGNORED = "ignored"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    delivery_id = models.CharField(max_length=100, unique=True, help_text="The provider's id.")
    event = models.CharField(max_length=100)
    action = models.CharField(max_length=100, blank=True)
    external_installation_id = models.PositiveBigIntegerField(null=True, blank=True, db_index=True)
    payload: models.JSONField[Any, Any] = models.JSONField()
    status = models.CharField(max_length=16, choices=Status, default=Status.RECEIVED)
    error = models.TextField(blank=True, help_text="Why it failed.")
    received_at = models.DateTimeField(db_default=Now(), editable=False)
    processed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "webhook deliveries"
        indexes = [
            models.Index(fields=["received_at"], name="delivery_received"),
            models.Index(
                fields=["received_at"],
                name="delivery_open",
                condition=Q(status__in=["received", "failed"]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.event} {self.action}".strip()
