"""What requests about files and ports say, and what their answers show."""

from __future__ import annotations

import base64
import re
from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from controlplane.http.pagination import DecimalField
from controlplane.http.serializers import (
    FlagField,
    OutputSerializer,
    OwnedInputSerializer,
    QuerySerializer,
    StringField,
    TimestampField,
)
from controlplane.spelling import camel_case

MAX_PATH_BYTES = 4096
LIST_LIMIT, MAX_LIST_LIMIT = 100, 1000
_URL_SAFE = str.maketrans("-_", "+/")
_MODE = re.compile(r"\A0?[0-7]{3}\Z")
_LINK_PATH = re.compile(r"\A/[!\x22$-~]*\Z")
_PATH_HELP = "Absolute, or relative to the blueprint's working directory, where runs start too."
_BASE64_HELP = "The bytes of a path that is not UTF-8, in base64; instead of the other parameter."


class PathField(StringField):
    """A path as it is: nothing is trimmed, and every character but NUL is allowed."""

    default_error_messages = {"max-bytes": f"A path may have at most {MAX_PATH_BYTES} bytes."}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            **{
                "required": False,
                "trim_whitespace": False,
                "max_length": MAX_PATH_BYTES,
                "help_text": _PATH_HELP,
                **kwargs,
            }
        )

    def to_internal_value(self, data: Any) -> str:
        """Return the path; raise ``ValidationError`` for one that is too long."""
        text = super().to_internal_value(data)
        if len(text.encode("utf-8", "replace")) > MAX_PATH_BYTES:
            self.fail("max-bytes")
        return text


@extend_schema_field({"type": "string", "maxLength": 4 * MAX_PATH_BYTES})
class PathBase64Field(StringField):
    """The bytes of a path, in base64 of either alphabet."""

    default_error_messages = {"invalid-base64": "This is not base64 of a path."}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"required": False, "help_text": _BASE64_HELP, **kwargs})

    def to_internal_value(self, data: Any) -> Any:
        """Return the bytes; raise ``ValidationError`` for what stands for none."""
        text = super().to_internal_value(data).translate(_URL_SAFE)
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except ValueError:
            self.fail("invalid-base64")
        if not raw or b"\0" in raw or len(raw) > MAX_PATH_BYTES:
            self.fail("invalid-base64")
        return raw


def _require_one(values: dict[str, Any], *names: str) -> dict[str, Any]:
    """Raise ``ValidationError`` unless each path is given in exactly one of its two forms."""
    errors = {}
    for name in names:
        forms = [form for form in (name, f"{name}_base64") if form in values]
        if not forms:
            told = serializers.ErrorDetail("This is required.", code="required")
            errors[camel_case(name)] = [told]
        elif len(forms) > 1:
            told = serializers.ErrorDetail("Give the path in one form only.", code="ambiguous-path")
            errors[camel_case(forms[1])] = [told]
    if errors:
        raise serializers.ValidationError(errors)
    return values


class FileQuery(QuerySerializer):
    """Which file."""

    path = PathField()
    path_base64 = PathBase64Field()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Take one of the two forms."""
        return _require_one(attrs, "path")


class WriteQuery(FileQuery):
    """Which file, and what becomes of its permissions."""

    mode = serializers.RegexField(
        _MODE,
        required=False,
        error_messages={"invalid": "Permissions are three octal digits, such as 755."},
        help_text="Permissions in octal digits, such as `755`; by default those of the "
        "existing file, and `644` for a new one.",
    )


class RemoveQuery(FileQuery):
    """Which file or folder."""

    recursive = serializers.BooleanField(
        required=False, default=False, help_text="Remove a folder with everything in it."
    )


class StatQuery(FileQuery):
    """Which file or folder."""

    hash = serializers.BooleanField(
        required=False,
        default=False,
        help_text="Include the SHA-256 of a file, for which all of it is read.",
    )


class FileListQuery(FileQuery):
    """Which folder, and where its list goes on."""

    limit = DecimalField(
        required=False,
        min_value=1,
        max_value=MAX_LIST_LIMIT,
        default=LIST_LIMIT,
        help_text=f"Maximum number of items (1 to {MAX_LIST_LIMIT}, default {LIST_LIMIT}).",
    )
    cursor = PathBase64Field(help_text="The nextCursor of the previous page.")


class MoveSerializer(OwnedInputSerializer):
    """What is to be called how."""

    body_required = True
    # "from" is a word of Python's.
    from_path = PathField(help_text=_PATH_HELP)
    from_path_base64 = PathBase64Field()
    to_path = PathField(help_text=_PATH_HELP)
    to_path_base64 = PathBase64Field()
    overwrite = FlagField(
        required=False, default=False, help_text="Replace an existing file of that name."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Take one form of each path."""
        return _require_one(attrs, "from_path", "to_path")


@extend_schema_serializer(component_name="MakeDirectory")
class MakeDirectorySerializer(OwnedInputSerializer):
    """Which folder."""

    body_required = True
    path = PathField()
    path_base64 = PathBase64Field()
    parents = FlagField(
        required=False,
        default=False,
        help_text="Also create missing parent folders, and accept a folder that already exists.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Take one of the two forms."""
        return _require_one(attrs, "path")


class WrittenSerializer(OutputSerializer):
    """What was stored."""

    size = serializers.IntegerField(min_value=0)
    sha256 = serializers.CharField(help_text="Also the `ETag`.")
    created = serializers.BooleanField(help_text="Whether the file is new.")


class UnpackedSerializer(OutputSerializer):
    """What an archive held."""

    files = serializers.IntegerField(min_value=0, help_text="Files and links; no folders.")
    size = serializers.IntegerField(min_value=0, help_text="The bytes of the archive.")


class FileEntrySerializer(OutputSerializer):
    """One file, folder or link."""

    name = serializers.CharField(help_text="Bytes that are not UTF-8 are shown as U+FFFD.")
    name_base64 = serializers.CharField(
        required=False, help_text="The bytes of a name that is not UTF-8."
    )
    type = serializers.CharField(
        help_text="`file`, `directory`, `symlink`, `fifo`, `socket`, `block-device`, "
        "`character-device` or `other`."
    )
    size = serializers.IntegerField(min_value=0)
    mode = serializers.CharField(help_text="Permissions in octal digits.")
    uid = serializers.IntegerField(min_value=0)
    gid = serializers.IntegerField(min_value=0)
    modified_at = TimestampField()
    target = serializers.CharField(required=False, help_text="The target of a link.")
    target_base64 = serializers.CharField(
        required=False, help_text="The bytes of a target that is not UTF-8."
    )
    sha256 = serializers.CharField(required=False, help_text="When the hash was asked for.")


class PortSerializer(OutputSerializer):
    """Something that listens."""

    port = serializers.IntegerField(min_value=1, max_value=65535)
    address = serializers.CharField(help_text="Like `127.0.0.1`, `0.0.0.0` or `::`.")
    pid = serializers.IntegerField(required=False, min_value=1, help_text="Inside the workspace.")
    process = serializers.CharField(required=False, help_text="The name of that process.")


class LinkPathField(StringField, serializers.RegexField):
    """A path on a port, optionally with a query."""


@extend_schema_serializer(component_name="MakePortLink")
class MakePortLinkSerializer(OwnedInputSerializer):
    """Where a link leads."""

    path = LinkPathField(
        _LINK_PATH,
        required=False,
        default="/",
        max_length=2000,
        help_text="The target on that port: a path, optionally with a query, in printable ASCII.",
    )


class PortLinkSerializer(OutputSerializer):
    """A link to a port, for whoever has it, for a short time."""

    url = serializers.CharField(help_text="For a browser, which gets a cookie for this port.")
    token = serializers.CharField(
        help_text="For programs: the header `x-svc-preview-token` of each request."
    )
    expires_at = TimestampField()


class PortListSerializer(OutputSerializer):
    """All that listens, by port."""

    items = PortSerializer(many=True)
