"""The system endpoints."""

from __future__ import annotations

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from controlplane.http.serializers import OutputSerializer
from controlplane.readiness import check_all, needs_setup

READINESS_STATUSES = ["ok", "degraded", "unavailable"]


class RootSerializer(OutputSerializer):
    """What this service is, and where it is described."""

    name = serializers.CharField()
    version = serializers.CharField()
    docs_path = serializers.CharField()
    open_api_path = serializers.CharField()


class LivenessSerializer(OutputSerializer):
    """The process answers."""

    status = serializers.ChoiceField(choices=["ok"])


class CheckSerializer(OutputSerializer):
    """The state of one part."""

    name = serializers.CharField()
    ok = serializers.BooleanField()
    required = serializers.BooleanField(  # type: ignore[assignment]  # DRF takes it off the class
        help_text="Whether the API is not ready without it."
    )
    detail = serializers.CharField()


class ReadinessSerializer(OutputSerializer):
    """Whether the service can do its work, part by part."""

    status = serializers.ChoiceField(
        choices=READINESS_STATUSES,
        help_text="`degraded`: requests are taken, and something that is not required is amiss.",
    )
    checks = CheckSerializer(many=True)


class SshGatewaySerializer(OutputSerializer):
    """Where people enter workspaces."""

    host = serializers.CharField()
    port = serializers.IntegerField()
    username_prefix = serializers.CharField()


class SetupStateSerializer(OutputSerializer):
    """What a first visit needs to know."""

    needs_setup = serializers.BooleanField(help_text="True while no staff account exists.")
    ssh_gateway = SshGatewaySerializer()


class SystemViewSet(ViewSet):
    """The service itself: what it is, whether it works, and how it is set up."""

    @extend_schema(
        operation_id="system.root",
        tags=["System"],
        summary="Service root",
        responses=RootSerializer,
    )
    def root(self, request: Request) -> Response:
        """Name the service and its release."""
        members = {
            "name": "controlplane",
            "version": settings.SVC_RELEASE,
            "docs_path": "/docs",
            "open_api_path": "/openapi.json",
        }
        return Response(RootSerializer(members).data)

    @extend_schema(
        operation_id="system.healthz",
        tags=["System"],
        summary="Liveness",
        responses=LivenessSerializer,
    )
    def liveness(self, request: Request) -> Response:
        """Answer."""
        return Response(LivenessSerializer({"status": "ok"}).data)

    @extend_schema(
        operation_id="system.readyz",
        tags=["System"],
        summary="Readiness",
        responses={200: ReadinessSerializer, 503: ReadinessSerializer},
    )
    def readiness(self, request: Request) -> Response:
        """Ask every part, each with a line of its own.

        503 when one that is `required` is not `ok`: the database, the broker, the registry, or,
        where others than this machine reach the API, the isolation of workspaces.
        """
        checks = check_all()
        ready = all(check.ok for check in checks if check.required)
        status = "unavailable" if not ready else "ok" if all(c.ok for c in checks) else "degraded"
        body = ReadinessSerializer({"status": status, "checks": checks}).data
        return Response(body, status=200 if ready else 503)

    @extend_schema(
        operation_id="system.setupState",
        tags=["System"],
        summary="Setup state",
        responses=SetupStateSerializer,
    )
    def setup_state(self, request: Request) -> Response:
        """Tell whether a staff account exists, and where the SSH gateway is."""
        members = {
            "needs_setup": needs_setup(),
            "ssh_gateway": {
                "host": settings.SVC_SSH_HOST,
                "port": settings.SVC_SSH_PORT,
                "username_prefix": settings.SSH_GATEWAY_WORKSPACE_USERNAME_PREFIX,
            },
        }
        return Response(SetupStateSerializer(members).data)
