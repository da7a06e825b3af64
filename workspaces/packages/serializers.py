"""The wire shapes of package resolution."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from rest_framework import serializers

from controlplane.http.serializers import (
    OutputSerializer,
    QuerySerializer,
    TextField,
    TimestampField,
)
from workspaces.families import FAMILIES

from .lookup import UNBUILT
from .names import MAX_QUERY_LENGTH
from .resolver import Reason, Source, Status

STATUSES = [status.value for status in Status]
ORIGINS = [source.value for source in Source]
SOURCES = ["cache", "repology", "override"]
REASONS = [reason.value for reason in Reason]


class PackageQuery(QuerySerializer):
    """What is asked for, and where."""

    query = TextField(
        max_length=MAX_QUERY_LENGTH,
        help_text="A tool's usual name (`rg`) or a package of the distribution, optionally "
        "followed by `:architecture` and `=version`.",
    )
    target_os = serializers.ChoiceField(
        choices=[*FAMILIES, *UNBUILT],
        required=False,
        help_text="The family. Absent: the installation's default family. Images of `nix` cannot "
        "be built: "
        "every package is `unsupported`.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Fill in the installation's default."""
        return {"target_os": settings.SVC_DEFAULT_OS_FAMILY, **attrs}


class ResolvedPackageSerializer(OutputSerializer):
    """A package to install."""

    name = serializers.CharField(help_text="As the distribution calls it.")
    version = serializers.CharField(required=False, help_text="The requested version, if any.")
    offered = serializers.CharField(
        required=False, help_text="The version that is installed when none is requested."
    )
    repository = serializers.CharField(
        required=False, help_text="The distribution's component or repository that has it."
    )


class OsSupportSerializer(OutputSerializer):
    """What a family has for the query."""

    supported = serializers.BooleanField()
    repo = serializers.CharField(required=False)
    package_name = serializers.CharField(required=False, help_text="The first package.")
    project_name = serializers.CharField(required=False, help_text="Equal to `packageName`.")
    version = serializers.CharField(
        required=False, help_text="The version that is installed when none is requested."
    )
    status = serializers.ChoiceField(
        choices=REASONS,
        required=False,
        help_text="Why it is not supported. `index-unread`: this family's index has not been read "
        "yet.",
    )


class OsSupportsSerializer(OutputSerializer):
    """Every family."""

    debian = OsSupportSerializer()
    ubuntu = OsSupportSerializer()
    fedora = OsSupportSerializer()
    arch = OsSupportSerializer()
    alpine = OsSupportSerializer()
    nix = OsSupportSerializer(help_text="Never supported.")


class AlternativeSerializer(OutputSerializer):
    """A package that may be meant."""

    project_name = serializers.CharField()


class PackageResolutionSerializer(OutputSerializer):
    """What a query means."""

    requested = serializers.CharField(help_text="The query, trimmed.")
    normalized = serializers.CharField(help_text="The query in lower case.")
    status = serializers.ChoiceField(choices=STATUSES)
    source = serializers.ChoiceField(  # type: ignore[assignment]  # a member, not the argument
        choices=SOURCES,
        help_text="`override`: a table decided, the operator's or the curated one; `cache`: the "
        "distribution's index as it was last read. `repology` is never asked.",
    )
    origin = serializers.ChoiceField(
        choices=ORIGINS,
        help_text="Who decided: the operator's `override`, the curated `alias` table or the "
        "distribution's `index`.",
    )
    canonical_id = serializers.CharField(
        required=False, help_text="The tool of the curated table that decided."
    )
    selected_project = serializers.CharField(required=False, help_text="The first package.")
    packages = ResolvedPackageSerializer(
        many=True, help_text="All packages that are installed; empty unless resolved."
    )
    os_support = OsSupportsSerializer()
    alternatives = AlternativeSerializer(
        many=True, help_text="Packages that may be meant, the nearest first."
    )
    reason = serializers.ChoiceField(
        choices=REASONS,
        required=False,
        help_text="Why it is not resolved.",
    )
    detail = serializers.CharField(required=False, help_text="The same, as a sentence.")
    fetched_at = TimestampField(
        required=False, help_text="When the family's index was read; absent before that."
    )
    expires_at = TimestampField(required=False, help_text="When it will be read again.")
