"""A blueprint is understood completely or refused with every fault at its place."""

from __future__ import annotations

import json

import pytest

from controlplane.errors import ValidationFailed
from tests.workspaces.blueprint.blueprints import FULL, MINIMAL, details_of, faults_of, with_value
from workspaces.blueprint import Blueprint


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

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("version", "1"),
            ("access", {"ssh": {"enabled": False, "listenPort": 2222}}),
            ("access/ssh/listenPort", 2222),
            ("customization/sudo", True),
            ("lifecycle/startup/foreground", {"kind": "harness"}),
            ("lifecycle/startup/steps", []),
            ("runtime/credentialRefs", []),
            ("runtime/env", {}),
            ("runtime/network", {"outbound": True}),
            ("target/os/family", "auto"),
            ("tooling", {"packages": []}),
        ],
    )
    def test_null_means_absent_where_a_member_has_a_default(self, path: str, value: object) -> None:
        assert Blueprint.parse(with_value(path, None)) == Blueprint.parse(with_value(path, value))

    def test_null_means_absent_for_the_working_directory_that_follows_the_root(self) -> None:
        runtime = {"workspaceRoot": "/srv/w", "workingDirectory": None}
        blueprint = Blueprint.parse({**MINIMAL, "runtime": runtime})
        assert blueprint.runtime.working_directory == "/srv/w/repo"

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
            ("tooling/packages", [None]),
            ("runtime/env/A", None),
            ("runtime/env", [["A", "b"]]),
            ("harness", "shell"),
            ("harness/command", "mine"),
        ],
    )
    def test_no_value_is_converted_to_another_type(self, path: str, value: object) -> None:
        entry = f"{path}/0" if value == [None] else path
        assert faults_of(with_value(path, value)) == {f"/spec/{entry}": "wrong-type"}

    @pytest.mark.parametrize(
        "path",
        ["harness", "harness/id", "lifecycle/startup/foreground/kind", "sources/inputs/0/id"],
    )
    def test_a_required_member_that_is_null_is_missing(self, path: str) -> None:
        assert faults_of(with_value(path, None)) == {f"/spec/{path}": "required"}

    def test_an_unknown_member_is_refused_although_it_is_null(self) -> None:
        assert faults_of(with_value("sources/workspace/authRef", None)) == {
            "/spec/sources/workspace/authRef": "auth-ref-refused"
        }
        assert faults_of(with_value("tooling/package", None)) == {
            "/spec/tooling/package": "unknown-member"
        }

    @pytest.mark.parametrize("value", ["shel", None, 3, [], {}])
    def test_a_wrong_kind_of_harness_is_named_at_its_member(self, value: object) -> None:
        assert set(faults_of({"harness": {"id": value}})) == {"/spec/harness/id"}
        assert faults_of({"harness": {}}) == {"/spec/harness/id": "required"}
        assert faults_of({}) == {"/spec/harness": "required"}

    def test_a_prompt_of_the_shell_cannot_be_restricted_to_reading(self) -> None:
        restricted = {"rights": "read-only"}
        for harness in ("codex", "claude-code", "opencode"):
            Blueprint.parse({"harness": {"id": harness, **restricted}})
        assert faults_of({"harness": {"id": "shell", **restricted}}) == {
            "/spec/harness/rights": "not-allowed"
        }
        Blueprint.parse({"harness": {"id": "shell", "rights": "full"}})

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
