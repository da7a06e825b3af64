"""The wire shapes of connected accounts, profiles and bindings. No answer holds a secret."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from accounts.models import ConnectedAccount, Profile
from accounts.providers import MAX_SECRET_LENGTH, Kind, Provider
from controlplane.http.serializers import (
    IdField,
    InputSerializer,
    NameField,
    OutputSerializer,
    OwnedInputSerializer,
    OwnerRequiredInputSerializer,
    StringField,
    TimestampField,
)

MAX_BINDINGS = 100


class SecretField(StringField):
    """A secret as it was pasted: blanks around it are kept, and no error repeats it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            max_length=MAX_SECRET_LENGTH, trim_whitespace=False, write_only=True, **kwargs
        )

    def to_internal_value(self, data: Any) -> str:
        """Return the text as it is."""
        text = super().to_internal_value(data)
        if not text.strip():
            self.fail("blank")
        return text


@extend_schema_serializer(component_name="ConnectAccount")
class AccountRequestSerializer(OwnerRequiredInputSerializer):
    """A secret of a provider."""

    provider = serializers.ChoiceField(choices=Provider.choices)
    name = NameField(
        required=False,
        help_text="Defaults to `default`; for a `generic` account, the name of its environment "
        "variable.",
    )
    secret = SecretField(
        help_text="Exactly as the provider issued it; it is sealed and never shown again."
    )


@extend_schema_serializer(component_name="MarkAccountInvalid")
class InvalidationRequestSerializer(OwnedInputSerializer):
    """Nothing but whose account it is."""


class ConnectedAccountSerializer(OutputSerializer):
    """An account that was connected, without its secret."""

    connected_account_id = serializers.UUIDField(source="pk")
    owner_user_id = serializers.CharField()
    provider = serializers.ChoiceField(choices=Provider.choices)
    name = serializers.CharField()
    kind = serializers.ChoiceField(choices=Kind.choices)
    status = serializers.ChoiceField(choices=ConnectedAccount.Status.choices)
    metadata = serializers.DictField(
        help_text="The parts that may be shown; they depend on the provider."
    )
    connected_at = TimestampField(source="created_at")
    updated_at = TimestampField()
    last_used_at = TimestampField(
        allow_null=True, help_text="When a workspace last received it; null if never."
    )
    last_synced_at = TimestampField(
        allow_null=True, help_text="When a renewed secret was last stored; null if never."
    )


class TextOrNullField(serializers.CharField):
    """A text for answers; an empty one is shown as null."""

    def to_representation(self, value: str) -> str | None:  # type: ignore[override]
        """Return the text."""
        return value or None


class RenewalSerializer(OutputSerializer):
    """What a tool in a workspace has renewed of an account, without the secret."""

    renewal_id = serializers.UUIDField(source="pk")
    connected_account_id = serializers.UUIDField(source="account_id")
    workspace_id = serializers.UUIDField(help_text="The workspace in which it was renewed.")
    metadata = serializers.DictField(
        help_text="The parts that may be shown; they depend on the provider."
    )
    collected_at = TimestampField()


class RenewalListSerializer(OutputSerializer):
    """Everything that waits for approval, the latest first."""

    items = RenewalSerializer(many=True)


@extend_schema_serializer(component_name="ApproveRenewal")
class ApprovalRequestSerializer(OwnerRequiredInputSerializer):
    """Nothing but whose account it is."""


class ProfileSerializer(OutputSerializer):
    """A set of connected accounts under one name."""

    profile_id = serializers.UUIDField(source="pk")
    owner_user_id = serializers.CharField()
    slug = serializers.CharField()
    name = serializers.CharField()
    description = TextOrNullField(allow_null=True)
    status = serializers.ChoiceField(choices=Profile.Status.choices)
    active_revision_id = serializers.CharField(
        allow_null=True, default=None, help_text="Always null: profiles have no revisions here."
    )
    created_at = TimestampField()
    updated_at = TimestampField()


@extend_schema_serializer(component_name="WantedBinding")
class WantedBindingSerializer(InputSerializer):
    """One account that the profile is to give."""

    provider = serializers.ChoiceField(choices=Provider.choices)
    connected_account_id = IdField()


def _faults(names: Iterable[str], detail: str, code: str) -> serializers.ValidationError:
    return serializers.ValidationError({name: [detail] for name in names}, code=code)


@extend_schema_serializer(component_name="ReplaceCredentialBindings")
class BindingsRequestSerializer(OwnerRequiredInputSerializer):
    """All accounts that the profile is to give, or the account of one provider."""

    bindings = serializers.ListField(
        child=WantedBindingSerializer(),
        max_length=MAX_BINDINGS,
        required=False,
        help_text="All accounts of the profile; those not named are removed.",
    )
    provider = serializers.ChoiceField(
        choices=Provider.choices,
        required=False,
        help_text="Instead of `bindings`: the provider whose account is replaced.",
    )
    connected_account_id = IdField(
        required=False,
        allow_null=True,
        help_text="With `provider`: its account. null removes the provider's accounts; a "
        "`generic` account is added "
        "to the others.",
    )

    def to_internal_value(self, data: Any) -> Any:
        values = super().to_internal_value(data)
        whole = "bindings" in values
        single = {"provider": values, "connectedAccountId": data}
        given = [name for name, where in single.items() if name in where]
        if whole and any(data[name] is not None for name in given):
            raise _faults(given, "Give either this or bindings, not both.", "not-allowed")
        if not whole and not given:
            raise _faults(["bindings"], "This field is required.", "required")
        if not whole and len(given) == 1:
            missing = single.keys() - given
            raise _faults(missing, "This field is required.", "required")
        return {"connected_account_id": None, **values} if "provider" in values else values


class BindingSerializer(OutputSerializer):
    """An account that a profile gives."""

    profile_id = serializers.UUIDField()
    provider = serializers.ChoiceField(choices=Provider.choices)
    connected_account_id = serializers.UUIDField(source="account_id")
    account = ConnectedAccountSerializer()


class BindingListSerializer(OutputSerializer):
    """Everything that a profile gives."""

    items = BindingSerializer(many=True)
