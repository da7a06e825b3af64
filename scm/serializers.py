"""The wire shapes of installations and their repositories."""

from __future__ import annotations

import re
from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from controlplane.http.serializers import (
    OutputSerializer,
    OwnerRequiredInputSerializer,
    PatternField,
    TextField,
    TimestampField,
)
from scm.models import Installation

_EXTERNAL_ID = re.compile(r"[1-9][0-9]{0,17}")


@extend_schema_serializer(component_name="ImportInstallation")
class ImportRequestSerializer(OwnerRequiredInputSerializer):
    """Which installation of the app to take over."""

    external_installation_id = PatternField(
        pattern=_EXTERNAL_ID, hint="The provider's id of the installation, in digits, as a string."
    )

    def to_internal_value(self, data: Any) -> Any:
        """Return the id as a number."""
        values = super().to_internal_value(data)
        number = int(values["external_installation_id"])
        return {**values, "external_installation_id": number}


@extend_schema_serializer(component_name="SyncInstallation")
class SyncRequestSerializer(OwnerRequiredInputSerializer):
    """Nothing but who asks."""


class SearchField(TextField):
    """Part of a repository's name."""

    def __init__(self) -> None:
        super().__init__(
            required=False,
            max_length=200,
            help_text="Part of `owner/name`, in upper or lower case.",
        )


class InstallationSerializer(OutputSerializer):
    """The app, installed by an account of the provider."""

    installation_id = serializers.UUIDField(source="pk")
    external_installation_id = serializers.CharField(
        source="external_id", help_text="The provider's id."
    )
    account_login = serializers.CharField()
    account_type = serializers.ChoiceField(choices=Installation.AccountType.choices)
    status = serializers.ChoiceField(choices=Installation.Status.choices)
    repository_selection = serializers.ChoiceField(choices=Installation.RepositorySelection.choices)
    last_synced_at = TimestampField(source="synced_at", required=False)


class InstallationRepositorySerializer(OutputSerializer):
    """A repository that an installation gives access to."""

    installation_repository_id = serializers.UUIDField(
        source="pk",
        help_text="The id that selections name; it stays the same when the repository is renamed.",
    )
    installation_id = serializers.UUIDField()
    repository_id = serializers.UUIDField()
    external_repository_id = serializers.CharField(
        source="repository.external_id", help_text="The provider's id."
    )
    owner = serializers.CharField(source="owner_login")
    name = serializers.CharField()
    full_name = serializers.CharField()
    default_branch = serializers.CharField()
    is_private = serializers.BooleanField()
    is_archived = serializers.BooleanField()
    last_synced_at = TimestampField(source="synced_at")


class ImportedInstallationSerializer(OutputSerializer):
    """An installation that was taken over."""

    installation = InstallationSerializer()
    synced_repository_count = serializers.IntegerField(source="repository_count")
    synced_at = TimestampField()


class SyncedInstallationSerializer(OutputSerializer):
    """An installation that was read again."""

    installation_id = serializers.UUIDField(source="installation.pk")
    synced_repository_count = serializers.IntegerField(source="repository_count")
    synced_at = TimestampField()
