"""The text messages of an attach: what a client may ask for, as strictly read as a body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rest_framework import serializers

from controlplane.errors import Fault, ValidationFailed
from controlplane.http.parsers import parse_json
from controlplane.http.problems import faults_of
from controlplane.http.serializers import InputSerializer, WholeNumberField, json_kind
from controlplane.spelling import suggestion
from runs.exec.serializers import SIGNALS, TerminalSerializer


class SignalSerializer(InputSerializer):
    """A signal for the process group of the command."""

    signal = serializers.ChoiceField(choices=SIGNALS)


class InputPlaceSerializer(InputSerializer):
    """Where the bytes belong that follow."""

    offset = WholeNumberField(min_value=0, max_value=2**53 - 1)


class InputEndSerializer(InputSerializer):
    """The end of the input: it has no members."""


MESSAGES: dict[str, type[InputSerializer]] = {
    "resize": TerminalSerializer,
    "signal": SignalSerializer,
    "input": InputPlaceSerializer,
    "input-end": InputEndSerializer,
}


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """What a client asks for: a type of ``MESSAGES``, and its members."""

    type: str
    members: dict[str, Any]


def read_control(text: str) -> ControlMessage:
    """Return what a text message asks for; raise ``BadRequest`` or ``ValidationFailed``."""
    value = parse_json(text.encode())
    if not isinstance(value, dict):
        detail = f"An object is expected here, not {json_kind(value)}."
        raise ValidationFailed([Fault("wrong-type", detail)])
    kind = value.pop("type", None)
    if not isinstance(kind, str) or kind not in MESSAGES:
        hint = suggestion(kind, list(MESSAGES)) if isinstance(kind, str) else ""
        detail = f"The type of a message is one of {', '.join(MESSAGES)}.{hint}"
        raise ValidationFailed([Fault("not-allowed", detail, pointer="/type")])
    reader = MESSAGES[kind](data=value)
    if not reader.is_valid():
        raise ValidationFailed(faults_of(reader.errors))
    return ControlMessage(kind, dict(reader.validated_data))
