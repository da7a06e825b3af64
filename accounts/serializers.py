"""The wire shapes of SSH keys."""

from __future__ import annotations

import base64
from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers
from rest_framework.fields import empty

from accounts.public_keys import (
    ALGORITHMS,
    PublicKey,
    PublicKeyRefused,
    parse_public_key,
    refuse_private_key,
)
from controlplane.http.serializers import (
    InputSerializer,
    NameField,
    OutputSerializer,
    OwnerRequiredInputSerializer,
    TextField,
    TimestampField,
)

MAX_KEY_LENGTH = 16384
KEY_ALGORITHMS = list(ALGORITHMS)


class PublicKeyField(TextField):
    """One line of an OpenSSH ``.pub`` file; its value is a :class:`PublicKey`."""

    # Tabs part the words of a line, and comments are text for people, as names are.
    invisible_allowed = "\t\r\n\u200c\u200d"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=MAX_KEY_LENGTH, **kwargs)

    def run_validation(self, data: Any = empty) -> PublicKey:
        """Return the key; the refusal of a private one comes before any other."""
        try:
            if isinstance(data, str):
                refuse_private_key(data)
            return parse_public_key(super().run_validation(data))
        except PublicKeyRefused as exc:
            raise serializers.ValidationError(str(exc), code=exc.code) from exc


@extend_schema_serializer(component_name="RegisterSshKey")
class SshKeyRequestSerializer(OwnerRequiredInputSerializer):
    """A public key to enter workspaces with."""

    public_key = PublicKeyField(
        help_text="One line of an OpenSSH `.pub` file: algorithm, base64 and, optionally, a "
        "comment."
    )
    name = NameField(required=False, help_text="Defaults to the key's comment.")


class SshKeySerializer(OutputSerializer):
    """A registered public key; the key itself is not shown."""

    ssh_key_id = serializers.UUIDField(source="pk")
    owner_user_id = serializers.CharField()
    name = serializers.CharField()
    algorithm = serializers.ChoiceField(choices=KEY_ALGORITHMS)
    fingerprint = serializers.CharField(help_text="As `ssh-keygen -lf` shows it.")
    created_at = TimestampField()


class KeyBlobField(TextField):
    """The blob of a key in base64; stays text."""

    default_error_messages = {"not-base64": "Base64 is expected here (RFC 4648, section 4)."}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=MAX_KEY_LENGTH, **kwargs)

    def to_internal_value(self, data: Any) -> str:
        """Return the text, which is sound base64."""
        text = super().to_internal_value(data)
        try:
            base64.b64decode(text, validate=True)
        except ValueError:
            self.fail("not-base64")
        return text


@extend_schema_serializer(component_name="ResolvePrincipal")
class PrincipalRequestSerializer(InputSerializer):
    """The key that a client of the SSH gateway has shown."""

    algo = TextField(help_text="The algorithm as the client named it; the key itself decides.")
    public_key_base64 = KeyBlobField(
        help_text="The key's blob, in base64 with its padding, as `ssh-keygen` writes it."
    )


class PrincipalSerializer(OutputSerializer):
    """Whose key it is."""

    principal_id = serializers.CharField(source="owner_user_id", help_text="The key's owner.")
    ssh_key_id = serializers.UUIDField(source="pk")
    fingerprint = serializers.CharField()
