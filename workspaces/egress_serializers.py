"""The wire shapes of what a workspace may reach, and of what it was refused."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from controlplane.http.serializers import (
    OutputSerializer,
    OwnerRequiredInputSerializer,
    TimestampField,
    WholeNumberField,
)

MAX_APPROVED_PORTS = 16


@extend_schema_field({"$ref": "#/components/schemas/EgressPolicy"})
class EgressPolicyField(serializers.JSONField):
    """A policy; the blueprint's own parser says what is wrong with it."""


class EgressSerializer(OutputSerializer):
    """What a workspace may reach."""

    policy = EgressPolicyField(help_text="As in its blueprint, with every default filled in.")


@extend_schema_serializer(component_name="ReplaceEgress")
class ReplaceEgressSerializer(OwnerRequiredInputSerializer):
    """What a workspace may reach from now on."""

    policy = EgressPolicyField(help_text="The whole policy; it replaces the present one.")


class EgressProposalSerializer(OutputSerializer):
    """A host that a workspace was refused, and that its owner may allow."""

    proposal_id = serializers.UUIDField(source="pk")
    host = serializers.CharField()
    port = serializers.IntegerField(
        required=False, help_text="Absent: its name was refused, so no port was ever tried."
    )
    refusals = serializers.IntegerField(min_value=0, help_text="How often it was refused.")
    first_refused_at = TimestampField()
    last_refused_at = TimestampField()


class EgressProposalListSerializer(OutputSerializer):
    """What waits for a decision, the latest first."""

    items = EgressProposalSerializer(many=True)


@extend_schema_serializer(component_name="ApproveEgressProposal")
class ApproveEgressProposalSerializer(OwnerRequiredInputSerializer):
    """At which ports the host may be reached."""

    ports = serializers.ListField(
        required=False,
        child=WholeNumberField(min_value=1, max_value=65535),
        min_length=1,
        max_length=MAX_APPROVED_PORTS,
        help_text="By default the port that was refused; 443 where only the name was.",
    )


@extend_schema_serializer(component_name="DismissEgressProposal")
class DismissEgressProposalSerializer(OwnerRequiredInputSerializer):
    """Nothing but whose workspace it is."""
