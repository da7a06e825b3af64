"""The wire shapes of a registry and of what is in it."""

from __future__ import annotations

import re
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.http.serializers import OutputSerializer, PatternField, QuerySerializer, TextField
from controlplane.oci_names import REPOSITORY, is_digest, is_tag


class RepositoryField(PatternField):
    """A repository of the registry; slashes around it do not count."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            pattern=re.compile(f"/*{REPOSITORY.pattern}/*"),
            hint="A repository is lower-case parts of letters and digits, joined by . _ - and /.",
            **kwargs,
        )

    def to_internal_value(self, data: Any) -> str:
        """Return the name without slashes around it."""
        return super().to_internal_value(data).strip("/")


class ReferenceField(TextField):
    """What names a manifest in a repository: a tag or a digest."""

    hint = "A tag, or a digest as sha256:… or sha512:… with lower-case hexadecimal digits."

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"help_text": self.hint, **kwargs})

    def to_internal_value(self, data: Any) -> str:
        """Return the reference when it follows the grammar."""
        text = super().to_internal_value(data)
        if not is_tag(text) and not is_digest(text):
            raise serializers.ValidationError(self.hint, code="invalid-format")
        return text


class TagListQuery(QuerySerializer):
    """Which repository's tags."""

    repository = RepositoryField()


class ManifestQuery(QuerySerializer):
    """Which manifest of which repository."""

    repository = RepositoryField()
    reference = ReferenceField()


class RegistrySerializer(OutputSerializer):
    """The registry that images are published to."""

    name = serializers.CharField(help_text="The `registryId` that requests name.")
    base_url = serializers.CharField(help_text="Its API, as this installation reaches it.")
    push_registry = serializers.CharField(help_text="Its name in image references.")
    has_basic_auth = serializers.BooleanField(help_text="Whether this installation has an account.")


@extend_schema_field({"type": "boolean", "const": True})
class TrueField(serializers.BooleanField):
    """Never anything but true: otherwise there is a problem instead of an answer."""


class RegistryPingSerializer(OutputSerializer):
    """The registry answered."""

    name = serializers.CharField()
    reachable = TrueField()


class RegistryExtensionSerializer(OutputSerializer):
    """An extension of the registry's API."""

    name = serializers.CharField()
    url = serializers.CharField(required=False)
    description = serializers.CharField(required=False)
    endpoints = serializers.ListField(child=serializers.CharField())


class RegistryExtensionsSerializer(OutputSerializer):
    """The extensions that the registry says it has."""

    extensions = RegistryExtensionSerializer(many=True)


class RegistryTagsSerializer(OutputSerializer):
    """All tags of a repository."""

    repository = serializers.CharField()
    tags = serializers.ListField(child=serializers.CharField(), help_text="Sorted.")


@extend_schema_field({"type": "object", "additionalProperties": True})
class DocumentField(serializers.Field[Any, Any, Any, Any]):
    """A JSON object as it is."""

    def to_representation(self, value: Any) -> Any:
        """Return it."""
        return value


class RegistryManifestSerializer(OutputSerializer):
    """A manifest of the registry."""

    repository = serializers.CharField()
    reference = serializers.CharField()
    digest = serializers.CharField(
        help_text="The digest of the manifest's bytes, which was verified."
    )
    content_type = serializers.CharField(
        allow_null=True, help_text="The manifest's media type; null when the registry gave none."
    )
    manifest = DocumentField(help_text="The manifest's JSON.")
