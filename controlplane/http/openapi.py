"""The OpenAPI description: generated from the code, strict inputs, one problem body everywhere."""

from __future__ import annotations

import json
import re
from functools import cache
from http import HTTPStatus
from typing import Any

from django.http import HttpResponse
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.viewsets import ViewSet

from controlplane.database.ids import OWNER_MAX_LENGTH
from controlplane.http.gateway_token import HEADER, PRINCIPAL_HEADER
from controlplane.http.serializers import (
    InputSerializer,
    OutputSerializer,
    OwnerRequiredInputSerializer,
    PatternField,
)
from controlplane.spelling import camel_case

_OWNER = {"type": "string", "minLength": 1, "maxLength": OWNER_MAX_LENGTH}
OWNER_QUERY = OpenApiParameter(
    "ownerUserId",
    _OWNER,
    description="The owner; `userId` is a synonym. The installation may require it.",
)
OWNER_REQUIRED = OpenApiParameter(
    "ownerUserId", _OWNER, required=True, description="The owner; `userId` is a synonym."
)
CREATED_LOCATION = OpenApiParameter(
    "Location", str, OpenApiParameter.HEADER, description="Its own path.", response=[201]
)
GATEWAY_TOKEN_REQUIRED = OpenApiParameter(
    HEADER,
    str,
    OpenApiParameter.HEADER,
    required=True,
    description="The secret that the installation and its SSH gateway share.",
)
PRINCIPAL = OpenApiParameter(
    PRINCIPAL_HEADER,
    str,
    OpenApiParameter.HEADER,
    required=True,
    description="The owner whose key the gateway has verified, in UTF-8.",
)

OWNER_BODY: dict[str, Any] = {
    "description": "The owner, for who does not name it in the query.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/OwnerRequest"}}},
}
OWNER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Whose it is, and nothing else.",
    "properties": {
        "ownerUserId": {**_OWNER, "description": "The owner. Given here or in the query."},
        "userId": {**_OWNER, "description": "A synonym of `ownerUserId`."},
    },
    "additionalProperties": False,
}

PROBLEM_WORDS = {
    "400": "The request is wrong; `errors` says where.",
    "409": "The request conflicts with the current state; see `code`.",
    "default": "Anything else that went wrong.",
}
CONFLICTS = {409: OpenApiResponse(description=PROBLEM_WORDS["409"])}
"""To be among the ``responses`` of an operation that can answer 409 and has no table of codes."""

PROBLEM_EXAMPLE: dict[str, Any] = {
    "_tag": "WorkspaceBadRequestError",
    "type": "urn:controlplane:problem:validation-failed",
    "title": "Validation failed",
    "status": 400,
    "detail": "The request has 2 faults; see errors.",
    "code": "validation-failed",
    "message": "The request has 2 faults; see errors.",
    "errors": [
        {
            "pointer": "/spec/harness/id",
            "code": "not-allowed",
            "detail": "must be one of 'opencode', 'codex', 'claude-code', 'shell', 'custom'. "
            "Did you mean 'codex'?",
        },
        {
            "pointer": "/repositroy",
            "code": "unknown-member",
            "detail": 'This member is not known. Did you mean "repository"?',
        },
    ],
    "requestId": "019c0f5e-2b1a-7c44-9d2f-6f1f3a0b5c77",
}

PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "What went wrong (RFC 9457). Some problems add members of their own.",
    "required": [
        "_tag",
        "type",
        "title",
        "status",
        "detail",
        "code",
        "message",
        "errors",
        "requestId",
    ],
    "properties": {
        "_tag": {
            "type": "string",
            "pattern": "^[A-Z][A-Za-z]+Error$",
            "description": "The error's class, for typed clients: group of the path and kind of "
            "the status.",
        },
        "type": {"type": "string", "description": "A URI that names the kind of problem."},
        "title": {"type": "string", "description": "The kind of problem in words."},
        "status": {"type": "integer", "description": "The HTTP status."},
        "detail": {"type": "string", "description": "What happened this time, and what to do."},
        "code": {
            "type": "string",
            "pattern": "^[a-z0-9-]+$",
            "description": "The kind of problem, for programs; stable.",
        },
        "message": {"type": "string", "description": "Equal to `detail`."},
        "errors": {
            "type": "array",
            "description": "Every fault of the request, each with its place: exactly one of "
            "`pointer`, `parameter` and `header`.",
            "items": {"$ref": "#/components/schemas/Fault"},
        },
        "requestId": {"type": "string", "description": "Finds the request in the logs."},
    },
    "examples": [PROBLEM_EXAMPLE],
}

FAULT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "One thing that is wrong with a request, and where.",
    "required": ["code", "detail"],
    "properties": {
        "pointer": {
            "type": "string",
            "description": "JSON pointer (RFC 6901) into the body; empty for the body as a whole.",
        },
        "parameter": {"type": "string", "description": "Name of a query parameter."},
        "header": {"type": "string", "description": "Name of a header."},
        "code": {"type": "string", "pattern": "^[a-z0-9-]+$"},
        "detail": {"type": "string"},
    },
    "additionalProperties": False,
}


class ControlPlaneSchema(AutoSchema):
    """Says what our serializers promise: strict inputs, patterns, and outputs without nulls."""

    def _is_list_view(self, serializer: Any = None) -> bool:
        """Never wrap an answer in an array: a list's answer is a page, and says so itself."""
        return False

    def _map_serializer(
        self, serializer: Any, direction: str, bypass_extensions: bool = False
    ) -> Any:
        schema: Any = super()._map_serializer(  # type: ignore[no-untyped-call]
            serializer, direction, bypass_extensions
        )
        if isinstance(schema, dict):
            _add_strictness(schema, getattr(serializer, "child", serializer))
        return schema

    def _map_serializer_field(
        self, field: Any, direction: str, bypass_extensions: bool = False
    ) -> Any:
        schema: Any = super()._map_serializer_field(  # type: ignore[no-untyped-call]
            field, direction, bypass_extensions
        )
        if isinstance(field, PatternField):
            schema["pattern"] = f"^{field.pattern.pattern}$"
        return schema

    def _get_request_for_media_type(self, serializer: Any, direction: str = "request") -> Any:
        schema, required = super()._get_request_for_media_type(  # type: ignore[no-untyped-call]
            serializer, direction
        )
        # What is no serializer is content: of a file, an archive, a delivery.
        by_itself = getattr(serializer, "body_required", True)
        return schema, required or by_itself


def _add_strictness(schema: dict[str, Any], serializer: Any) -> None:
    """Add what drf-spectacular does not know of our serializers."""
    if isinstance(serializer, InputSerializer | OutputSerializer):
        schema["additionalProperties"] = False
    if isinstance(serializer, OwnerRequiredInputSerializer):
        schema["required"] = sorted({*schema.get("required", ()), "ownerUserId"})
    if isinstance(serializer, OutputSerializer):
        # DRF calls read-only members optional; ours are there unless they say otherwise.
        required = [name for name, field in serializer.fields.items() if field.required]
        schema.pop("required", None)
        if required:
            schema["required"] = sorted(required)


def add_shared_parts(
    result: dict[str, Any], generator: Any, request: Any, public: bool
) -> dict[str, Any]:
    """Add what all operations share: the problem body, phrases, path parameters in camelCase."""
    # The API knows no passwords or tokens; who may reach it is the network's decision.
    result["security"] = []
    result["servers"] = [{"url": "/", "description": "The installation that serves this page."}]
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    schemas["Problem"], schemas["Fault"] = PROBLEM_SCHEMA, FAULT_SCHEMA
    schemas["OwnerRequest"] = OWNER_SCHEMA
    result["components"]["schemas"] = dict(sorted(schemas.items()))
    result["paths"] = {
        re.sub(r"\{(\w+)\}", lambda match: f"{{{camel_case(match[1])}}}", path): operations
        for path, operations in result["paths"].items()
    }
    for operations in result["paths"].values():
        if "delete" in operations:
            # Of GET only the text at the top says it: browsers and many clients cannot send one.
            operations["delete"]["requestBody"] = OWNER_BODY
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path":
                    parameter["name"] = camel_case(parameter["name"])
            for status, response in operation["responses"].items():
                response["description"] = response["description"] or HTTPStatus(int(status)).phrase
            conflicts = "| 409 |" in operation.get("description", "")
            for status in PROBLEM_WORDS:
                named = operation["responses"].pop(status, None)
                if named or status != "409" or conflicts:
                    operation["responses"][status] = _problem_response(status)
    return result


def _problem_response(status: str) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": "#/components/schemas/Problem"}}
    if status == "default":
        content["example"] = PROBLEM_EXAMPLE
    return {
        "description": PROBLEM_WORDS[status],
        "content": {"application/problem+json": content},
    }


@cache
def document() -> bytes:
    """Return the description as JSON; the code does not change while a process lives."""
    described = SchemaGenerator().get_schema(  # type: ignore[no-untyped-call]
        request=None, public=True
    )
    return json.dumps(described, ensure_ascii=False).encode()


class DescriptionViewSet(ViewSet):
    """``GET /openapi.json``."""

    @extend_schema(exclude=True)
    def retrieve(self, request: Request) -> HttpResponse:
        """Describe the API."""
        return HttpResponse(document(), content_type="application/json")
