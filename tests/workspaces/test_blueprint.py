"""A blueprint is understood completely or refused with every fault at its place."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.errors import ValidationFailed
from workspaces.blueprint import Blueprint, blueprint_schema

FULL: dict[str, Any] = {
    "version": "1",
    "sources": {
        "workspace": {"kind": "git", "provider": "github", "url": "https://example.org/o/app.git"},
        "inputs": [
            {
                "id": "dots",
                "purpose": "dotfiles",
                "url": "file:///srv/dots.git",
                "ref": "v1",
                "mountPath": "/mnt/dots",
            }
        ],
    },
    "harness": {
        "id": "custom",
        "profile": "p",
        "install": "set -x\n\ttrue",
        "command": ["mine", "--a b"],
    },
    "access": {"ssh": {"enabled": True, "listenPort": 2200, "authorizedKeysRef": "k"}},
    "tooling": {"packages": [{"id": "jq"}, {"id": "g++", "version": "4:12.2.0-3~x_y"}]},
    "customization": {
        "defaultShell": "fish",
        "dotfilesManager": "stow",
        "dotfilesTarget": "config",
        "applyDotfiles": False,
        "dotfilesBootstrap": False,
        "dotfilesBootstrapCommand": "make all",
        "user": "root",
        "sudo": False,
    },
    "lifecycle": {
        "setup": [{"id": "one", "run": "echo 'a'\necho b", "shell": "sh"}],
        "startup": {
            "steps": [{"run": "true", "workingDirectory": "sub/dir"}],
            "foreground": {"kind": "command", "run": "sleep 9", "workingDirectory": "/tmp"},
        },
    },
    "runtime": {
        "env": {"A": "", "B_1": " kept \n\tas is ü "},
        "credentialRefs": [],
        "workspaceRoot": "/root/w",
        "workingDirectory": "/root/w/x",
        "persistence": "persistent",
        "ociRuntime": "runsc",
        "network": {"outbound": False},
        "resources": {"memoryMb": 512, "cpus": 1.5, "pids": 100},
    },
    "target": {
        "os": {"family": "alpine", "mode": "require"},
        "runtime": {"family": "docker", "mode": "require"},
    },
    "credentials": {"profileId": "p", "claude": "c", "codex": "x", "github": "g"},
}

MINIMAL: dict[str, Any] = {"harness": {"id": "shell"}}


def with_value(path: str, value: object) -> dict[str, Any]:
    """Return the full blueprint with another value at a path of names and positions."""
    document = copy.deepcopy(FULL)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    place: Any = document
    for part in parents:
        place = place[part]
    place[last] = value
    return document


def faults_of(data: object) -> dict[str, str]:
    with pytest.raises(ValidationFailed) as caught:
        Blueprint.parse(data)
    for fault in caught.value.errors:
        json.dumps(fault.to_wire(), ensure_ascii=False).encode()
    return {fault.pointer: fault.code for fault in caught.value.errors}


def details_of(data: object) -> str:
    with pytest.raises(ValidationFailed) as caught:
        Blueprint.parse(data)
    return "\n".join(fault.detail for fault in caught.value.errors)


class TestWhatIsAccepted:
    def test_a_harness_is_all_that_is_required(self) -> None:
        blueprint = Blueprint.parse(MINIMAL)
        assert blueprint.to_wire() == {
            "version": "1",
            "sources": {"inputs": []},
            "harness": {"id": "shell"},
            "access": {"ssh": {"enabled": False, "listenPort": 2222}},
            "tooling": {"packages": []},
            "customization": {
                "defaultShell": "bash",
                "dotfilesManager": "auto",
                "dotfilesTarget": "home",
                "applyDotfiles": True,
                "dotfilesBootstrap": True,
                "user": "workspace",
                "sudo": True,
            },
            "lifecycle": {
                "setup": [],
                "startup": {"steps": [], "foreground": {"kind": "harness"}},
            },
            "runtime": {
                "env": {},
                "credentialRefs": [],
                "workspaceRoot": "/workspace",
                "workingDirectory": "/workspace/repo",
                "persistence": "ephemeral",
                "ociRuntime": "runc",
                "network": {"outbound": True},
                "resources": {},
            },
            "target": {
                "os": {"family": "auto", "mode": "prefer"},
                "runtime": {"family": "auto", "mode": "prefer"},
            },
        }

    def test_every_member_survives_the_round_trip(self) -> None:
        blueprint = Blueprint.parse(FULL)
        assert Blueprint.parse(json.loads(json.dumps(blueprint.to_wire()))) == blueprint
        assert blueprint.runtime.env == FULL["runtime"]["env"]
        assert blueprint.lifecycle.setup[0].run == "echo 'a'\necho b"

    def test_null_means_absent_where_a_member_has_no_default(self) -> None:
        blueprint = Blueprint.parse(with_value("sources/inputs/0/ref", None))
        assert blueprint.sources.inputs[0].ref is None
        assert "ref" not in json.dumps(blueprint.to_wire()["sources"])

    def test_outer_white_space_is_removed(self) -> None:
        blueprint = Blueprint.parse(with_value("sources/inputs/0/ref", "  main\n"))
        assert blueprint.sources.inputs[0].ref == "main"

    def test_the_working_directory_follows_the_workspace_root(self) -> None:
        blueprint = Blueprint.parse({**MINIMAL, "runtime": {"workspaceRoot": "/srv/w"}})
        assert blueprint.runtime.working_directory == "/srv/w/repo"

    def test_a_whole_number_of_processors_is_a_number(self) -> None:
        assert Blueprint.parse(with_value("runtime/resources/cpus", 2)).runtime.resources.cpus == 2

    @pytest.mark.parametrize(
        "ref",
        ["main", "v1.2", "feature/x#1", "refs/heads/a", "ü", "a'b", "$(x)", "a@b", "0" * 40],
    )
    def test_what_git_accepts_is_a_ref(self, ref: str) -> None:
        blueprint = Blueprint.parse(with_value("sources/inputs/0/ref", ref))
        assert blueprint.sources.inputs[0].ref == ref

    @pytest.mark.parametrize(
        "url",
        [
            *("https://github.com/o/r", "http://host:8080/a%20b", "git://[2606:4700::1111]/x"),
            *("file:///srv/x.git", "file://localhost/srv/x.git", "https://a_b.c/~u/r.git"),
        ],
    )
    def test_public_addresses_of_repositories_are_urls(self, url: str) -> None:
        blueprint = Blueprint.parse(with_value("sources/workspace/url", url))
        assert blueprint.sources.workspace is not None
        assert blueprint.sources.workspace.url == url

    def test_values_cannot_be_changed(self) -> None:
        blueprint = Blueprint.parse(FULL)
        with pytest.raises(ValueError, match="frozen"):
            blueprint.customization.user = "workspace"
        assert isinstance(blueprint.tooling.packages, tuple)

    def test_credentials_can_be_left_out_of_what_is_stored(self) -> None:
        assert "credentials" not in Blueprint.parse(FULL).without_credentials().to_wire()


class TestWhatIsRefused:
    def test_all_faults_are_named_at_once(self) -> None:
        document = with_value("lifecycle/startup/foreground", {"kind": "command", "shell": "zsh"})
        document["harness"] = {"id": "custom", "comand": ["x"]}
        document["sources"]["inputs"][0] |= {"authRef": "/proc/self/environ", "url": "x"}
        document["runtime"]["env"] = {"1": "", "SVC_RUN": "", "A": 3, "B": "a\0b"}
        document["tooling"]["packages"][1]["version"] = "1; rm"
        document["target"] = []
        assert faults_of(document) == {
            "/spec/lifecycle/startup/foreground/run": "required",
            "/spec/lifecycle/startup/foreground/shell": "not-allowed",
            "/spec/harness/command": "required",
            "/spec/harness/comand": "unknown-member",
            "/spec/sources/inputs/0/authRef": "auth-ref-refused",
            "/spec/sources/inputs/0/url": "url-scheme",
            "/spec/runtime/env/1": "malformed",
            "/spec/runtime/env/SVC_RUN": "reserved-name",
            "/spec/runtime/env/A": "wrong-type",
            "/spec/runtime/env/B": "control-character",
            "/spec/tooling/packages/1/version": "malformed",
            "/spec/target": "wrong-type",
        }

    def test_pointers_begin_where_the_caller_says_and_are_escaped(self) -> None:
        with pytest.raises(ValidationFailed) as caught:
            Blueprint.parse({**MINIMAL, "a/b~c": 1}, pointer="/x")
        assert [fault.pointer for fault in caught.value.errors] == ["/x/a~1b~0c"]

    @pytest.mark.parametrize(
        ("path", "suggestion"),
        [
            ("harnes", "harness"),
            ("customization/default_shell", "defaultShell"),
            ("lifecycle/startup/foreground/runs", "run"),
            ("sources/inputs/0/mountpath", "mountPath"),
            ("harness/cmmand", "command"),
        ],
    )
    def test_an_unknown_member_comes_with_a_suggestion(self, path: str, suggestion: str) -> None:
        document = with_value(path, 1)
        assert faults_of(document) == {f"/spec/{path}": "unknown-member"}
        assert f"Did you mean '{suggestion}'?" in details_of(document)

    @pytest.mark.parametrize("place", ["sources/workspace", "sources", "harness", "runtime"])
    def test_an_auth_ref_is_refused_wherever_it_stands(self, place: str) -> None:
        assert faults_of(with_value(f"{place}/authRef", "x")) == {
            f"/spec/{place}/authRef": "auth-ref-refused"
        }

    def test_an_environment_variable_may_be_called_auth_ref(self) -> None:
        Blueprint.parse(with_value("runtime/env/authRef", "x"))

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("access/ssh/listenPort", "2222"),
            ("access/ssh/listenPort", True),
            ("access/ssh/listenPort", 22.0),
            ("access/ssh/enabled", 1),
            ("access/ssh/enabled", "true"),
            ("runtime/resources/cpus", True),
            ("runtime/resources/cpus", "1"),
            ("tooling/packages/0/id", 7),
            ("tooling/packages", {"id": "jq"}),
            ("tooling", None),
            ("runtime/env", [["A", "b"]]),
            ("harness", "shell"),
            ("harness/command", "mine"),
        ],
    )
    def test_no_value_is_converted_to_another_type(self, path: str, value: object) -> None:
        assert faults_of(with_value(path, value)) == {f"/spec/{path}": "wrong-type"}

    @pytest.mark.parametrize("value", ["shel", None, 3, [], {}])
    def test_a_wrong_kind_of_harness_is_named_at_its_member(self, value: object) -> None:
        assert set(faults_of({"harness": {"id": value}})) == {"/spec/harness/id"}
        assert faults_of({"harness": {}}) == {"/spec/harness/id": "required"}
        assert faults_of({}) == {"/spec/harness": "required"}

    @pytest.mark.parametrize("member", ["install", "command"])
    def test_only_a_custom_harness_describes_itself(self, member: str) -> None:
        value = "x" if member == "install" else ["x"]
        assert faults_of({"harness": {"id": "codex", member: value}}) == {
            f"/spec/harness/{member}": "unknown-member"
        }

    def test_credential_references_belong_to_the_server(self) -> None:
        document = with_value("runtime/credentialRefs", [{"provider": "claude", "ref": "x"}])
        assert faults_of(document) == {"/spec/runtime/credentialRefs": "server-owned"}

    @pytest.mark.parametrize(
        ("url", "code"),
        [
            ("git@github.com:o/r.git", "malformed"),
            ("host:o/r.git", "malformed"),
            ("ssh://git@host/x", "url-scheme"),
            ("ftp://host/x", "url-scheme"),
            ("javascript:alert(1)", "malformed"),
            ("ext::sh -c id", "malformed"),
            ("HTTPS://host/x", "url-scheme"),
            ("file:relative", "url-scheme"),
            ("/srv/x.git", "url-scheme"),
            ("https://user:hunter2@host/x", "url-credentials"),
            ("https://hunter2@host/x", "url-credentials"),
            ("https://@host/x", "url-credentials"),
            ("https://host/x?token=hunter2", "malformed"),
            ("https://host/x#hunter2", "malformed"),
            ("https://host", "malformed"),
            ("https:///x", "malformed"),
            ("https://host:0/x", "malformed"),
            ("https://host:99999/x", "malformed"),
            ("https://[::1/x", "malformed"),
            ("https://-host/x", "malformed"),
            ("https://ho st/x", "malformed"),
            ("https://host/%0a", "malformed"),
            ("https://host/%zz", "malformed"),
            ("https://host\\@evil/x", "malformed"),
            ("https://höst/x", "malformed"),
            ("file://host/srv/x", "malformed"),
            ("--upload-pack=touch", "malformed"),
            ("https://host/" + "x" * 2048, "too-long"),
        ],
    )
    def test_a_malformed_or_leaking_url_is_refused_without_repeating_it(
        self, url: str, code: str
    ) -> None:
        document = with_value("sources/workspace/url", url)
        assert faults_of(document) == {"/spec/sources/workspace/url": code}
        assert "hunter2" not in details_of(document)

    @pytest.mark.parametrize(
        "ref",
        [
            *("-x", "--upload-pack=touch", "a b", "a..b", "a~1", "a^", "a:b", "a?", "a*", "a[b"),
            *("a\\b", "/a", "a/", "a//b", ".a", "a/.b", "a.", "a.lock", "a.lock/b", "@", "a@{1}"),
            "a\u00a0b",
        ],
    )
    def test_what_git_refuses_is_no_ref(self, ref: str) -> None:
        assert faults_of(with_value("sources/inputs/0/ref", ref)) == {
            "/spec/sources/inputs/0/ref": "malformed"
        }

    @pytest.mark.parametrize(
        ("root", "code"),
        [
            *(("/", "malformed"), ("relative", "malformed"), ("/a/../b", "malformed")),
            *(("/a//b", "malformed"), ("/a/", "malformed"), ("/a b", "malformed")),
            *(("/a/./b", "malformed"), ("/a$b", "malformed"), ("/ä", "malformed")),
            *(("/etc", "reserved-path"), ("/usr/local/x", "reserved-path")),
            *(("/var/lib/svc", "reserved-path"), ("/home", "reserved-path")),
            *(("/proc/1", "reserved-path"), ("/lib64", "reserved-path")),
        ],
    )
    def test_a_workspace_cannot_take_the_place_of_the_system(self, root: str, code: str) -> None:
        document = {**MINIMAL, "runtime": {"workspaceRoot": root}}
        assert faults_of(document) == {"/spec/runtime/workspaceRoot": code}

    def test_only_root_works_in_the_home_of_root(self) -> None:
        document = with_value("customization/user", "workspace")
        assert faults_of(document) == {"/spec/runtime/workspaceRoot": "reserved-path"}
        Blueprint.parse({**MINIMAL, "runtime": {"workspaceRoot": "/rootling"}})

    def test_the_working_directory_is_in_the_workspace(self) -> None:
        document = with_value("runtime/workingDirectory", "/root/wx")
        assert faults_of(document) == {"/spec/runtime/workingDirectory": "outside-workspace"}

    def test_ids_of_sources_are_unique(self) -> None:
        document = with_value("sources/inputs", [FULL["sources"]["inputs"][0]] * 2)
        assert faults_of(document) == {"/spec/sources/inputs/1/id": "duplicate"}
        assert faults_of(with_value("sources/inputs/0/id", "workspace")) == {
            "/spec/sources/inputs/0/id": "duplicate"
        }

    @pytest.mark.parametrize(
        "name", ["HOME", "USER", "LOGNAME", "SHELL", "PWD", "LD_PRELOAD", "LD_LIBRARY_PATH", "SVC_"]
    )
    def test_the_variables_of_the_control_plane_cannot_be_set(self, name: str) -> None:
        assert faults_of(with_value(f"runtime/env/{name}", "x")) == {
            f"/spec/runtime/env/{name}": "reserved-name"
        }


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


def string_places(value: object, path: str = "") -> list[str]:
    """Return the path of every string in a document."""
    if isinstance(value, str):
        return [path]
    entries = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value if isinstance(value, list) else ())
    )
    return [place for key, entry in entries for place in string_places(entry, f"{path}/{key}")]


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


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    entries = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value if isinstance(value, list) else ())
    )
    return [path] + [deeper for key, entry in entries for deeper in places(entry, (*path, key))]


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


class TestSchema:
    def test_the_schema_is_sound_and_stands_alone(self) -> None:
        schema = blueprint_schema()
        jsonschema.Draft202012Validator.check_schema(schema)
        text = json.dumps(schema)
        assert "$ref" not in text
        assert "$defs" not in text

    @pytest.mark.parametrize("document", [FULL, MINIMAL, Blueprint.parse(MINIMAL).to_wire()])
    def test_what_is_accepted_satisfies_the_schema(self, document: object) -> None:
        jsonschema.validate(document, blueprint_schema())

    def test_the_schema_refuses_unknown_members_at_every_level(self) -> None:
        validator = jsonschema.Draft202012Validator(blueprint_schema())
        for path in places(FULL):
            place: Any = FULL
            for part in path:
                place = place[part]
            if isinstance(place, dict) and path != ("runtime", "env"):
                document = with_value("/".join(map(str, [*path, "unknown"])), 1)
                assert not validator.is_valid(document), path

    def test_every_member_is_described(self) -> None:
        def undescribed(schema: Any, path: str) -> list[str]:
            found = []
            for name, member in schema.get("properties", {}).items():
                if "description" not in member:
                    found.append(f"{path}/{name}")
                found += undescribed(member, f"{path}/{name}")
            for key in ("oneOf", "anyOf"):
                for option in schema.get(key, ()):
                    found += undescribed(option, path)
            return found + (undescribed(schema["items"], path) if "items" in schema else [])

        assert undescribed(blueprint_schema(), "") == []


def test_an_endless_array_is_refused_before_its_entries_are_looked_at() -> None:
    spec = {"harness": {"id": "shell"}, "tooling": {"packages": [1] * 300_000}}

    with pytest.raises(ValidationFailed) as caught:
        Blueprint.parse(spec)

    assert [(fault.pointer, fault.code) for fault in caught.value.errors] == [
        ("/spec/tooling/packages", "too-many")
    ]
