"""The wire shapes of an exec: what is asked for, and what it answers."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from controlplane.http.serializers import (
    FlagField,
    InputSerializer,
    OutputSerializer,
    OwnedInputSerializer,
    StringField,
    TextField,
    WholeNumberField,
    json_kind,
)
from controlplane.spelling import camel_case
from runs.fields import EnvironmentField, ExactTextField, TimeLimitField
from runs.input.later import WAITING_BYTES
from runs.models import Run
from runs.serializers import ARGUMENT_MAX_BYTES, MAX_ARGUMENTS

SIGNALS = ["HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP", "WINCH"]
OUTPUT_BYTES = 1024**2
"""How much of each output an answer has; the record has all of it."""
STDIN_MAX_BYTES = 16 * 1024**2
"""What the agent takes with a command. The limit of the body is below it, unless it was raised."""


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
        ]
    }
)
class CommandLineField(serializers.Field[Any, Any, Any, Any]):
    """A program with its arguments as a list, or the text of a shell; becomes the list."""

    default_error_messages = {
        "wrong-type": "A list of strings or a string is expected here, not {kind}.",
    }
    _text = ExactTextField(max_bytes=ARGUMENT_MAX_BYTES, allow_blank=False)
    _list = serializers.ListField(
        child=ExactTextField(max_bytes=ARGUMENT_MAX_BYTES),
        allow_empty=False,
        max_length=MAX_ARGUMENTS + 1,
    )

    def to_internal_value(self, data: Any) -> list[str]:
        """Return the program and its arguments."""
        if isinstance(data, str):
            return ["bash", "-lc", "--", self._text.run_validation(data)]
        if not isinstance(data, list):
            self.fail("wrong-type", kind=json_kind(data))
        argv: list[str] = self._list.run_validation(data)
        if not argv[0]:
            told = serializers.ErrorDetail("The name of a program is expected here.", code="blank")
            raise serializers.ValidationError({"0": [told]})
        return argv

    def to_representation(self, value: Any) -> Any:
        """Return it as it is."""
        return value


@extend_schema_field({"type": "string", "contentEncoding": "base64"})
class BytesField(StringField):
    """Bytes in base64, at most ``max_bytes`` of them; stays text."""

    default_error_messages = {
        "not-base64": "Base64 is expected here (RFC 4648, section 4).",
        "too-long": "At most {limit} bytes are taken here.",
    }

    def __init__(self, *, max_bytes: int, **kwargs: Any) -> None:
        self.max_bytes = max_bytes
        super().__init__(**{"trim_whitespace": False, "allow_blank": True, **kwargs})

    def to_internal_value(self, data: Any) -> str:
        """Return the text, which is sound base64."""
        text = super().to_internal_value(data)
        try:
            size = len(base64.b64decode(text, validate=True))
        except (ValueError, binascii.Error):
            self.fail("not-base64")
        if size > self.max_bytes:
            self.fail("too-long", limit=self.max_bytes)
        return text


class TerminalSerializer(InputSerializer):
    """The size of a terminal."""

    columns = WholeNumberField(min_value=1, max_value=65_535)
    rows = WholeNumberField(min_value=1, max_value=65_535)


@extend_schema_serializer(component_name="Exec")
class ExecRequestSerializer(OwnedInputSerializer):
    """A command for a workspace."""

    command = CommandLineField(
        help_text="A list is a program and its arguments, without a shell. A string is executed "
        "with `bash -lc`.",
    )
    cwd = TextField(
        max_length=4_096,
        required=False,
        help_text="Working directory: absolute, or relative to the blueprint's working directory.",
    )
    env = EnvironmentField(
        required=False,
        help_text="Environment variables added to the workspace's, within the blueprint's limits.",
    )
    stdin = ExactTextField(
        max_bytes=STDIN_MAX_BYTES,
        required=False,
        help_text="Standard input as text; empty by default. The limit of the body applies.",
    )
    stdin_base64 = BytesField(
        max_bytes=STDIN_MAX_BYTES,
        required=False,
        help_text="The same as base64 bytes; give only one of the two.",
    )
    time_limit_ms = TimeLimitField(
        required=False, help_text="Time until it is stopped; by default the installation's limit."
    )
    changes = FlagField(
        default=False,
        help_text="Whether to compare the working tree before and after, as other runs do; this "
        "takes longer the more files there are. Otherwise the record states that the tree was not "
        "compared.",
    )
    background = FlagField(
        default=False, help_text="Answer 202 with the run at once, and do not wait for its end."
    )

    open_stdin = FlagField(
        default=False,
        help_text="More input comes with `POST /v1/runs/{runId}/input`. Needs `background`.",
    )
    terminal = TerminalSerializer(
        required=False,
        help_text="Gives it a terminal of this size, whose output is the stream `pty`. Needs "
        "`openStdin`.",
    )

    def validate(self, attrs: Any) -> Any:
        """Refuse two inputs, and one that nobody could give."""
        _refuse_both(attrs, "stdin", "stdin_base64")
        needs = {"open_stdin": "background", "terminal": "open_stdin"}
        for name, needed in needs.items():
            if attrs.get(name) and not attrs[needed]:
                told = f"This needs {camel_case(needed)}."
                detail = serializers.ErrorDetail(told, code="requires-another")
                raise serializers.ValidationError({camel_case(name): [detail]})
        return attrs


def _refuse_both(attrs: Any, text: str, as_bytes: str) -> None:
    if text in attrs and as_bytes in attrs:
        told = serializers.ErrorDetail("The input is given twice.", code="conflicting")
        raise serializers.ValidationError({camel_case(as_bytes): [told]})


@extend_schema_serializer(component_name="RunInput")
class InputRequestSerializer(OwnedInputSerializer):
    """Input for the program of a run; any of these, carried out in this order."""

    resize = TerminalSerializer(required=False, help_text="A new size for its terminal.")
    stdin = ExactTextField(
        max_bytes=WAITING_BYTES, required=False, help_text="Further input, as text; at most 4 MiB."
    )
    stdin_base64 = BytesField(
        max_bytes=WAITING_BYTES,
        required=False,
        help_text="The same as base64 bytes; give only one of the two.",
    )
    offset = WholeNumberField(
        min_value=0,
        max_value=2**53 - 1,
        required=False,
        help_text="How many bytes of input come before these, including `stdin`: bytes already "
        "accepted are "
        "not accepted again, so a request may be repeated.",
    )
    end = FlagField(required=False, help_text="Closes the input after that.")
    signal = serializers.ChoiceField(
        choices=SIGNALS, required=False, help_text="A signal for the process group of the command."
    )

    def validate(self, attrs: Any) -> Any:
        """Refuse two inputs."""
        _refuse_both(attrs, "stdin", "stdin_base64")
        return attrs


class InputStateSerializer(OutputSerializer):
    """How far the input of a run was taken."""

    offset = serializers.IntegerField(source="received", help_text="The offset of the next byte.")
    ended = serializers.BooleanField()


class ExecSerializer(OutputSerializer):
    """How a command ended, and what it wrote."""

    run_id = serializers.UUIDField(help_text="Its run, with the record of everything it did.")
    workspace_id = serializers.UUIDField()
    status = serializers.ChoiceField(
        choices=Run.Status.choices,
        help_text="`queued` or `running` only if the service stopped before the command ended: the "
        "command continues, and its run says how it ends.",
    )
    exit_code = serializers.IntegerField(required=False)
    exit_signal = serializers.CharField(required=False)
    error_code = serializers.CharField(required=False)
    error_message = serializers.CharField(required=False)
    stdout = serializers.CharField(
        help_text=f"The first {OUTPUT_BYTES} bytes. Bytes that are not UTF-8 are replaced."
    )
    stdout_base64 = serializers.CharField(
        required=False, help_text="The same bytes in base64, when `stdout` is not valid UTF-8."
    )
    stderr = serializers.CharField(help_text="As `stdout`.")
    stderr_base64 = serializers.CharField(required=False)
    truncated = serializers.BooleanField(
        help_text="The output is longer; the scrollback of the run has the rest."
    )
