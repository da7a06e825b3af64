"""No blueprint is too large, too deep or too odd to be read or refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.errors import ValidationFailed
from tests.workspaces.blueprint.blueprints import (
    FULL,
    MINIMAL,
    faults_of,
    places,
    string_places,
    with_value,
)
from workspaces.blueprint import Blueprint


class TestLimits:
    @pytest.mark.parametrize(
        ("path", "largest", "too_large", "code"),
        [
            ("tooling/packages", [{"id": "a"}] * 200, [{"id": "a"}] * 201, "too-many"),
            ("lifecycle/setup", [{"run": "a"}] * 49, [{"run": "a"}] * 51, "too-many"),
            ("lifecycle/setup/0/run", "x" * 16384, "x" * 16385, "too-long"),
            ("lifecycle/setup/0/run", "ü" * 8192, "ü" * 8193, "too-long"),
            ("harness/install", "x" * 16384, "x" * 16385, "too-long"),
            ("runtime/env/A", "x" * 4096, "x" * 4097, "too-long"),
            (
                "runtime/env",
                {f"N{n}": "" for n in range(128)},
                {f"N{n}": "" for n in range(129)},
                "too-many",
            ),
            (
                "runtime/env",
                {f"N{n}": "x" * 4094 for n in range(8)},
                {f"N{n}": "x" * 4095 for n in range(8)},
                "too-long",
            ),
            ("access/ssh/listenPort", 65535, 65536, "out-of-range"),
            ("access/ssh/listenPort", 1, 0, "out-of-range"),
            ("runtime/resources/pids", 16, 15, "out-of-range"),
            ("runtime/resources/cpus", 0.1, 0.09, "out-of-range"),
            ("runtime/resources/memoryMb", 64, -(10**400), "out-of-range"),
        ],
    )
    def test_the_largest_value_passes_and_the_next_does_not(
        self, path: str, largest: object, too_large: object, code: str
    ) -> None:
        Blueprint.parse(with_value(path, largest))
        assert faults_of(with_value(path, too_large)) == {f"/spec/{path}": code}

    def test_a_number_with_a_fraction_is_told_from_one_without(self) -> None:
        with pytest.raises(ValidationFailed) as caught:
            Blueprint.parse(with_value("runtime/resources/memoryMb", 512.0))
        (fault,) = caught.value.errors
        assert fault.detail == "must be an integer, not a fraction."

    def test_a_name_of_a_variable_has_at_most_128_characters(self) -> None:
        Blueprint.parse(with_value(f"runtime/env/{'N' * 128}", ""))
        assert set(faults_of(with_value(f"runtime/env/{'N' * 129}", "")).values()) == {"too-long"}

    def test_setup_and_startup_share_their_limit(self) -> None:
        document = with_value("lifecycle/setup", [{"run": "a"}] * 30)
        document["lifecycle"]["startup"]["steps"] = [{"run": "a"}] * 21
        assert faults_of(document) == {"/spec/lifecycle/startup/steps": "too-many"}

    def test_an_answer_never_names_more_faults_than_a_person_can_use(self) -> None:
        document = {**MINIMAL, **{f"unknown{n}": 1 for n in range(100_000)}}
        with pytest.raises(ValidationFailed) as caught:
            Blueprint.parse(document)
        assert len(caught.value.errors) == 500

    def test_a_huge_name_is_cut_in_its_pointer(self) -> None:
        (pointer,) = faults_of({**MINIMAL, "x" * 1_000_000: 1})
        assert len(pointer) < 100


def test_an_endless_array_is_refused_before_its_entries_are_looked_at() -> None:
    spec = {"harness": {"id": "shell"}, "tooling": {"packages": [1] * 300_000}}

    with pytest.raises(ValidationFailed) as caught:
        Blueprint.parse(spec)

    assert [(fault.pointer, fault.code) for fault in caught.value.errors] == [
        ("/spec/tooling/packages", "too-many")
    ]


class TestHostileText:
    @pytest.mark.parametrize("place", [place[1:] for place in string_places(FULL)])
    @pytest.mark.parametrize(
        "text", ["a\0b", "a\x1bb", "a\rb", "a\x7fb", "a\x85b", "a\u2028b", "a\ud800b", "\udfff"]
    )
    def test_control_characters_and_lone_surrogates_are_refused_everywhere(
        self, place: str, text: str
    ) -> None:
        assert set(faults_of(with_value(place, text))) >= {f"/spec/{place}"}

    @pytest.mark.parametrize(
        "place",
        [
            place[1:]
            for place in string_places(FULL)
            if not place.endswith("/run") and "/env/" not in place and "/install" not in place
        ],
    )
    @pytest.mark.parametrize("text", ["a\nb", "a\tb", "a\u202eb", "a\ufeffb", "", "  \n"])
    def test_only_scripts_and_variables_have_more_than_one_plain_line(
        self, place: str, text: str
    ) -> None:
        assert set(faults_of(with_value(place, text))) >= {f"/spec/{place}"}

    def test_a_lone_surrogate_does_not_hide_the_other_faults(self) -> None:
        document = with_value("runtime/env", {"\ud800": "a", "A": "\udc00", "1": ""})
        document["\ud800"] = 1
        assert faults_of(document) == {
            "/spec/runtime/env/\\ud800": "malformed-text",
            "/spec/runtime/env/A": "malformed-text",
            "/spec/\\ud800": "malformed-text",
            "/spec/runtime/env/1": "malformed",
        }

    def test_deep_nesting_is_refused_like_any_other_wrong_type(self) -> None:
        deep: list[object] = []
        for _ in range(200_000):
            deep = [deep]
        assert faults_of(with_value("runtime/env/A", deep)) == {"/spec/runtime/env/A": "wrong-type"}
        while deep:  # taken apart by hand: the interpreter would recurse
            deep = deep.pop()  # type: ignore[assignment]


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=())),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=())), children, max_size=4)
    ),
    max_leaves=20,
)


@st.composite
def nearly_blueprints(draw: st.DrawFn) -> object:
    """Draw the full blueprint with a few places replaced, added to or emptied."""
    document: Any = {"spec": copy.deepcopy(FULL)}
    for _ in range(draw(st.integers(1, 4))):
        *parents, last = draw(st.sampled_from(places(document)[1:]))
        place = document
        for part in parents:
            place = place[part]
        change = draw(st.sampled_from(["replace", "add", "remove"]))
        if change == "replace":
            place[last] = draw(ANY_JSON)
        elif change == "add" and isinstance(place[last], dict):
            place[last][draw(st.text(st.characters(exclude_categories=())))] = draw(ANY_JSON)
        elif change == "remove" and isinstance(place, dict) and len(place) > 1:
            del place[last]
    return document["spec"]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ANY_JSON | nearly_blueprints())
def test_any_json_is_a_blueprint_that_survives_the_round_trip_or_a_list_of_faults(
    data: object,
) -> None:
    before = repr(data)
    try:
        blueprint = Blueprint.parse(data)
    except ValidationFailed as error:
        assert error.errors
        for fault in error.errors:
            assert fault.pointer.startswith("/spec")
            json.dumps(fault.to_wire(), ensure_ascii=False).encode()
    else:
        assert Blueprint.parse(json.loads(json.dumps(blueprint.to_wire()))) == blueprint
    assert repr(data) == before, "the caller's document is left as it is"
