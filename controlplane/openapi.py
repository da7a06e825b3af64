"""The OpenAPI description: strict inputs, and the problem response on every operation."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema

from controlplane.serializers import InputSerializer, OutputSerializer

PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "What went wrong (RFC 9457).",
    "required": ["type", "title", "status", "detail", "code", "message", "errors", "requestId"],
    "properties": {
        "type": {"type": "string", "description": "A URI that names the kind of problem."},
        "title": {"type": "string", "description": "The kind of problem in words."},
        "status": {"type": "integer", "description": "The HTTP status."},
        "detail": {"type": "string", "description": "What happened this time, and what to do."},
        "code": {"type": "string", "description": "Stable, kebab-case; made for programs."},
        "message": {"type": "string", "description": "Equal to detail."},
        "errors": {
            "type": "array",
            "description": "Every single fault of the request.",
            "items": {
                "type": "object",
                "required": ["code", "detail"],
                "properties": {
                    "pointer": {"type": "string", "description": "JSON pointer into the body."},
                    "parameter": {"type": "string", "description": "Name in query or path."},
                    "header": {"type": "string", "description": "Name of the header."},
                    "code": {"type": "string"},
                    "detail": {"type": "string"},
                },
            },
        },
        "requestId": {"type": "string", "description": "Finds the request in the logs."},
    },
}


class ControlPlaneSchema(AutoSchema):
    """Says what our serializers promise: strict inputs, and outputs without nulls."""

    def _map_serializer(
        self, serializer: Any, direction: str, bypass_extensions: bool = False
    ) -> Any:
        schema: Any = super()._map_serializer(  # type: ignore[no-untyped-call]
            serializer, direction, bypass_extensions
        )
        if isinstance(schema, dict):
            strict = serializer.child if hasattr(serializer, "child") else serializer
            if isinstance(strict, InputSerializer):
                schema["additionalProperties"] = False
            if isinstance(strict, OutputSerializer):
                # Absent optional members are left out of answers.
                required = [
                    name
                    for name, field in strict.fields.items()
                    if not getattr(field, "allow_null", False) and name in schema["properties"]
                ]
                schema.pop("required", None)
                if required:
                    schema["required"] = sorted(required)
        return schema


def add_problem_responses(
    result: dict[str, Any], generator: Any, request: Any, public: bool
) -> dict[str, Any]:
    """Give every operation the ``default`` response: the problem body."""
    result.setdefault("components", {}).setdefault("schemas", {})["Problem"] = PROBLEM_SCHEMA
    for operations in result["paths"].values():
        for operation in operations.values():
            operation["responses"]["default"] = {
                "description": "Anything that went wrong.",
                "content": {
                    "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
                },
            }
    return result
