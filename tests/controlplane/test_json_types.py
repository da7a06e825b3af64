"""A member of a body has its JSON type: nothing is read as what it resembles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from rest_framework import serializers

from controlplane.http.serializers import (
    FlagField,
    IdField,
    InputSerializer,
    StringField,
    WholeNumberField,
)
from runs.exec.serializers import CommandLineField
from runs.fields import EnvironmentField
from tests.architecture.sources import sources
from tests.conftest import OWNER, Api
from workspaces.egress_serializers import EgressPolicyField
from workspaces.serializers import BlueprintField

Field = serializers.Field[Any, Any, Any, Any]

READ_BY_MODELS = (BlueprintField, EgressPolicyField, EnvironmentField)
"""What these hold is checked by the strict models of `workspaces.blueprint`."""
SAMPLES: dict[str, list[object]] = {
    "a string": ["5", "true", "text"],
    "a number": [0, 1, 5, 1.5, 20.0],
    "a boolean": [True, False],
    "an array": [[], ["5"]],
    "an object": [{}, {"a": 5}],
}


def input_serializers() -> list[type[InputSerializer]]:
    """Return every serializer of a body that the product has."""
    for source in sources():
        names = {node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name)}
        if names & {"InputSerializer", "OwnedInputSerializer"}:
            import_module(".".join(source.path.with_suffix("").parts).removesuffix(".__init__"))
    found: list[type[InputSerializer]] = []
    waiting: list[type[InputSerializer]] = [InputSerializer]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if not kind.__module__.startswith("tests."):
                found.append(kind)
    return found


def leaves(name: str, field: Field) -> Iterator[tuple[str, Field]]:
    """Give the fields in ``field`` that hold no others, each with where it is."""
    if isinstance(field, serializers.BaseSerializer):
        for inner, child in getattr(field, "fields", {}).items():
            yield from leaves(f"{name}/{inner}", child)
        if isinstance(field, serializers.ListSerializer) and field.child is not None:
            yield from leaves(f"{name}/-", field.child)
    elif isinstance(field, serializers.ListField | serializers.DictField):
        yield from leaves(f"{name}/-", field.child)
    else:
        yield name, field


def members() -> list[tuple[str, Field]]:
    found: dict[str, Field] = {}
    for kind in input_serializers():
        found |= dict(leaves(kind.__name__, kind()))
    return sorted(found.items(), key=lambda item: item[0])


MEMBERS = members()


def kind_of(field: Field) -> str:
    """Return the JSON type of what ``field`` takes; fail for a field that this test is to learn."""
    if isinstance(field, StringField | IdField):
        return "a string"
    if isinstance(field, serializers.ChoiceField):
        assert all(isinstance(choice, str) for choice in field.choices)
        return "a string"
    if isinstance(field, WholeNumberField):
        return "a number"
    if isinstance(field, FlagField):
        return "a boolean"
    raise AssertionError(f"{type(field).__name__} is lenient, or not known here")


def is_taken(field: Field, value: object) -> bool:
    try:
        field.run_validation(value)
    except serializers.ValidationError:
        return False
    return True


def test_the_walk_finds_the_members() -> None:
    names = {name for name, _ in MEMBERS}
    assert {
        "SandboxRequestSerializer/ttlSeconds",
        "ApproveEgressProposalSerializer/ports/-",
        "SignalSerializer/signal",
        "BindingsRequestSerializer/bindings/-/connectedAccountId",
    } <= names


@pytest.mark.parametrize(
    "field",
    [field for _, field in MEMBERS if not isinstance(field, (*READ_BY_MODELS, CommandLineField))],
    ids=[
        name
        for name, field in MEMBERS
        if not isinstance(field, (*READ_BY_MODELS, CommandLineField))
    ],
)
def test_no_member_takes_another_type(field: Field) -> None:
    wanted = kind_of(field)
    others = [value for kind, values in SAMPLES.items() if kind != wanted for value in values]
    assert [value for value in others if is_taken(field, value)] == []


def test_a_command_is_made_of_strings() -> None:
    values: list[Any] = [5, True, {}, ["a", 5], ["a", True], [["a"]]]
    for value in values:
        assert not is_taken(CommandLineField(), value)


def test_variables_are_strings() -> None:
    values: list[Any] = [{"A": 5}, {"A": True}, {"A": ["a"]}, {"A": {}}]
    for value in values:
        assert not is_taken(EnvironmentField(), value)


@pytest.mark.parametrize("value", [60, 60.0])
def test_a_number_without_a_fraction_is_whole(value: float) -> None:
    taken = WholeNumberField(max_value=60).run_validation(value)
    assert (taken, type(taken)) == (60, int)


@pytest.mark.parametrize("value", [60.5, 1e300])
def test_other_numbers_are_not(value: float) -> None:
    assert not is_taken(WholeNumberField(max_value=60), value)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "member", "value"),
    [
        ("/v1/sandboxes", "ttlSeconds", "60"),
        ("/v1/sandboxes", "ttlSeconds", True),
        ("/v1/sandboxes", "name", 5),
        ("/v1/workspaces/{id}/exec", "background", "yes"),
        ("/v1/workspaces/{id}/exec", "changes", 1),
        ("/v1/workspaces/{id}/exec", "stdinBase64", 1234),
        ("/v1/workspaces/{id}/files/mkdir", "path", 5),
        ("/v1/workspaces/{id}/files/mkdir", "parents", "true"),
        ("/v1/workspaces/{id}/files/move", "overwrite", "on"),
    ],
)
def test_the_fault_names_the_member(api: Api, path: str, member: str, value: object) -> None:
    path = path.format(id="019c0f5e-2b1a-7c44-9d2f-6f1f3a0b5c77")
    body = {member: value} if path.endswith("/exec") else {"ownerUserId": OWNER, member: value}
    answer = api.post(path, body, expect=400)
    assert answer.codes[f"/{member}"] == "wrong-type"
