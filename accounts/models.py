"""Who may enter, and what owners have connected: SSH keys, accounts, profiles, bindings."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from accounts.providers import Kind, Provider
from controlplane.database.ids import OWNER_MAX_LENGTH, uuid7

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


class ConnectedAccountQuerySet(models.QuerySet["ConnectedAccount"]):
    """Accounts of an owner, and those that were not deleted."""

    def owned_by(self, owner_user_id: str | None) -> ConnectedAccountQuerySet:
        """Keep the accounts of one owner; of everybody when the caller names none."""
        return self if owner_user_id is None else self.filter(owner_user_id=owner_user_id)

    def kept(self) -> ConnectedAccountQuerySet:
        """Keep the accounts that were not deleted."""
        return self.exclude(status=ConnectedAccount.Status.ARCHIVED)


class ConnectedAccount(models.Model):
    """A secret of a provider that an owner has given to this installation, sealed.

    ::

        active ⇄ invalid      (connecting the account again makes it active)
           └──────┴──→ archived

    Archiving erases the secret and frees the name; the row stays for whoever refers to it.
    """

    class Status(models.TextChoices):
        ACTIVE = "active"
        INVALID = "invalid"
        ARCHIVED = "archived"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    owner_user_id = models.CharField(max_length=OWNER_MAX_LENGTH)
    provider = models.CharField(max_length=16, choices=Provider)
    name = models.CharField(max_length=NAME_MAX_LENGTH)
    kind = models.CharField(max_length=16, choices=Kind)
    status = models.CharField(max_length=16, choices=Status, default=Status.ACTIVE)
    sealed = models.BinaryField(null=True, editable=False)
    generation = models.PositiveIntegerField(
        default=1, help_text="How often it was connected; renewing its secret does not count."
    )
    metadata = models.JSONField(default=dict, help_text="What may be shown of the account.")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    last_synced_at = models.DateTimeField(null=True, blank=True)

    objects = ConnectedAccountQuerySet.as_manager()

    class Meta:
        indexes = [models.Index(fields=["owner_user_id", "-id"], name="connected_account_owner")]
        constraints = [
            models.UniqueConstraint(
                fields=["owner_user_id", "provider", "name"],
                condition=~Q(status="archived"),
                name="connected_account_name_once",
            ),
            models.CheckConstraint(
                condition=Q(status="archived") ^ Q(sealed__isnull=False),
                name="connected_account_erased",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.provider} {self.name} of {self.owner_user_id}"


class RenewedSecret(models.Model):
    """What a tool in a workspace has renewed of an account, until its owner approves it.

    Of each workspace one. It goes when the account is renewed, connected again, marked invalid or
    deleted.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    account = models.ForeignKey(
        ConnectedAccount, on_delete=models.CASCADE, related_name="renewed_secrets"
    )
    workspace_id = models.UUIDField(help_text="The workspace in which it was renewed.")
    sealed = models.BinaryField(editable=False)
    metadata = models.JSONField(default=dict, help_text="What may be shown of it.")
    collected_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["account", "workspace_id"], name="renewed_secret_once_a_workspace"
            )
        ]

    def __str__(self) -> str:
        return f"renewal of {self.account_id} in workspace {self.workspace_id}"


class ProfileQuerySet(models.QuerySet["Profile"]):
    """Profiles of an owner."""

    def owned_by(self, owner_user_id: str | None) -> ProfileQuerySet:
        """Keep the profiles of one owner; of everybody when the caller names none."""
        return self if owner_user_id is None else self.filter(owner_user_id=owner_user_id)


class Profile(models.Model):
    """A set of connected accounts under one name. Every owner has one called ``default``."""

    DEFAULT_SLUG = "default"

    class Status(models.TextChoices):
        ACTIVE = "active"
        ARCHIVED = "archived"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    owner_user_id = models.CharField(max_length=OWNER_MAX_LENGTH)
    slug = models.SlugField(max_length=64)
    name = models.CharField(max_length=NAME_MAX_LENGTH)
    description = models.TextField(blank=True, max_length=2000)
    status = models.CharField(max_length=16, choices=Status, default=Status.ACTIVE)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    accounts = models.ManyToManyField(ConnectedAccount, through="CredentialBinding")

    objects = ProfileQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner_user_id", "slug"], name="profile_slug_once")
        ]

    def __str__(self) -> str:
        return f"{self.slug} of {self.owner_user_id}"


class CredentialBinding(models.Model):
    """An account that a profile gives to the workspaces started with it.

    One for each provider; of ``generic`` accounts any number, as each is another variable.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    profile = models.ForeignKey(Profile, on_delete=models.CASCADE, related_name="bindings")
    account = models.ForeignKey(ConnectedAccount, on_delete=models.PROTECT)
    provider = models.CharField(max_length=16, choices=Provider)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["profile", "account"], name="binding_account_once"),
            models.UniqueConstraint(
                fields=["profile", "provider"],
                condition=~Q(provider="generic"),
                name="binding_provider_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.provider} of {self.profile_id}"
