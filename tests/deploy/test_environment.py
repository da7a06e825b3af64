"""Secrets, and which of two values for one setting wins."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
from pathlib import Path

from deploy.services.account import first_closed_parent
from deploy.up.environment import (
    bundle_extra_ca,
    complete,
    load_derived,
    save_derived,
    settings_only,
    shell_exports,
)
from deploy.up.layout import Layout
from deploy.up.secrets import ensure_secrets, read_settings

CHECKOUT = Path(__file__).resolve().parents[2]


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_generated_once_and_only_for_their_owner(layout: Layout) -> None:
    made = ensure_secrets(layout.secrets)
    first = read_settings(layout.secrets)
    assert set(made) == set(first)
    assert _mode(layout.secrets) == 0o600
    assert ensure_secrets(layout.secrets) == []
    assert read_settings(layout.secrets) == first
    assert len(bytes.fromhex(first["WEB_AUTH_SECRET"])) == 32
    assert len(bytes.fromhex(first["WORKSPACE_SSH_GATEWAY_TOKEN"])) == 32
    assert len(base64.b64decode(first["SVC_CREDENTIALS_KEY"], validate=True)) == 32


def test_two_installations_share_no_secret(layout: Layout) -> None:
    other = layout.data / "other.env"
    ensure_secrets(layout.secrets)
    ensure_secrets(other)
    assert not set(read_settings(layout.secrets).values()) & set(read_settings(other).values())


def test_what_the_operator_wrote_is_kept_and_only_the_missing_is_added(layout: Layout) -> None:
    text = "# mine\nWEB_AUTH_SECRET=chosen by hand\nexport SVC_API_PORT='4100'\nSVC_DB_PASSWORD="
    layout.secrets.write_text(text)
    layout.secrets.chmod(0o644)
    made = ensure_secrets(layout.secrets)
    assert layout.secrets.read_text().startswith(text + "\n")
    assert "WEB_AUTH_SECRET" not in made
    values = read_settings(layout.secrets)
    assert values["WEB_AUTH_SECRET"] == "chosen by hand"
    assert values["SVC_API_PORT"] == "4100"
    assert values["SVC_DB_PASSWORD"] == ""
    assert _mode(layout.secrets) == 0o600


def test_the_environment_wins_over_the_file_and_both_over_what_was_found(layout: Layout) -> None:
    layout.secrets.write_text("SVC_INSTANCE_ID=file\nREGISTRY_NAME=file\n")
    derived = {"SVC_INSTANCE_ID": "found", "REGISTRY_NAME": "found", "DOCKER_HOST": "found"}
    environ = {"SVC_INSTANCE_ID": "environment", "DOCKER_HOST": "", "MAKEFLAGS": "w"}
    values = complete(layout, environ, derived)
    assert values["SVC_INSTANCE_ID"] == "environment"
    assert values["REGISTRY_NAME"] == "file"
    assert values["DOCKER_HOST"] == "found"
    assert "MAKEFLAGS" not in values


def test_a_test_run_gets_an_instance_and_a_queue_of_its_own(layout: Layout) -> None:
    ensure_secrets(layout.secrets)
    plain = complete(layout, {}, {})
    test = complete(layout, {}, {}, test=True)
    assert test["SVC_INSTANCE_ID"] == f"{plain['SVC_INSTANCE_ID']}-test"
    assert test["WORKSPACE_BUILD_QUEUE"] == "sandbox-image-builds.test"


def test_a_slow_machine_meets_no_limit_of_time_in_a_test_run(layout: Layout) -> None:
    ensure_secrets(layout.secrets)
    name = "DATABASE_IDLE_TRANSACTION_TIMEOUT_MS"
    assert name not in complete(layout, {}, {})
    assert complete(layout, {}, {}, test=True)[name] == "300000"
    assert complete(layout, {name: "7000"}, {}, test=True)[name] == "7000"


def test_pages_of_other_origins_read_nothing_unless_the_operator_says_so(layout: Layout) -> None:
    name = "SVC_CORS_ALLOWED_ORIGINS"
    ports = {"SVC_API_PORT": "4100", "SVC_WEB_PORT": "0"}
    assert complete(layout, {}, ports)[name] == "http://localhost:4100,http://127.0.0.1:4100"
    assert complete(layout, {name: "*"}, ports)[name] == "*"
    assert name not in complete(layout, {"CORS_ALLOWED_ORIGINS": "*"}, ports)


def test_what_was_found_is_kept_for_the_owner_only(layout: Layout) -> None:
    derived = {"DATABASE_URL": "postgres://svc:secret@127.0.0.1:1/svc", "SVC_API_PORT": "4000"}
    save_derived(layout, derived)
    before = layout.environment.stat()
    save_derived(layout, derived)
    assert layout.environment.stat() == before
    assert load_derived(layout) == derived
    assert _mode(layout.environment) == 0o600


def test_exports_survive_a_shell(layout: Layout) -> None:
    value = """a 'quoted' "value" $HOME `id` \\ end"""
    exports = shell_exports(settings_only({"SVC_ODD": value, "HOME": "/nowhere"}))
    assert "HOME=" not in exports.replace("SVC_ODD", "")
    done = subprocess.run(
        ["sh", "-c", f'{exports}\nprintf %s "$SVC_ODD"'], capture_output=True, text=True, check=True
    )
    assert done.stdout == value


def test_a_program_run_with_the_settings_keeps_its_exit_code_and_its_words(
    tmp_path: Path,
) -> None:
    program = "import os, sys; print(os.environ['SVC_INSTANCE_ID']); sys.exit(7)"
    done = subprocess.run(
        [sys.executable, "-m", "deploy.up", "run", "--", sys.executable, "-c", program],
        cwd=CHECKOUT,
        env={"PATH": os.environ["PATH"], "SVC_DATA_DIR": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        check=False,
    )
    stored = read_settings(tmp_path / "data" / ".env")["SVC_INSTANCE_ID"]
    assert (done.returncode, done.stdout, done.stderr) == (7, f"{stored}\n", "")


def test_the_authorities_of_this_machine_become_one_file(layout: Layout, tmp_path: Path) -> None:
    folder = tmp_path / "authorities"
    folder.mkdir()
    assert bundle_extra_ca(layout, folder) is None
    (folder / "b.crt").write_text("second\n\n")
    (folder / "a.crt").write_text("first")
    bundle = bundle_extra_ca(layout, folder)
    assert bundle is not None
    assert Path(bundle).read_text() == "first\nsecond\n"


def test_a_closed_parent_directory_is_noticed(tmp_path: Path) -> None:
    closed = tmp_path / "home"
    closed.mkdir(mode=0o700)
    (closed / "checkout").mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    first = first_closed_parent(closed / "checkout")
    # pytest's own directories are closed too; the outermost one is named.
    assert first is not None
    assert closed == first or closed.is_relative_to(first)
    assert first_closed_parent(Path("/usr/bin")) is None


def test_below_a_closed_directory_services_keep_their_data_elsewhere(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    tmp_path.chmod(0o700)
    layout = Layout.of(checkout, {}, as_root=True)
    assert layout.services.parent == Path("/var/lib")
    assert "is not accessible" in layout.moved_because
    tmp_path.chmod(0o755)
    # Data that lies somewhere stays there, also when the reason is gone.
    assert Layout.of(checkout, {}, as_root=True).services == layout.services


def test_without_root_a_closed_directory_is_good_enough(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert Layout.of(tmp_path, {}, as_root=False).services == tmp_path / ".data" / "services"


def test_an_open_checkout_keeps_everything_below_itself(open_directory: Path) -> None:
    layout = Layout.of(open_directory, {}, as_root=True)
    assert layout.data == open_directory / ".data"
    assert layout.services == open_directory / ".data" / "services"
    assert layout.moved_because == ""


def test_a_data_directory_of_ones_own_is_used(open_directory: Path) -> None:
    layout = Layout.of(open_directory, {"SVC_DATA_DIR": str(open_directory / "elsewhere")})
    assert layout.services == open_directory / "elsewhere" / "services"


def test_sockets_get_a_short_path_below_a_deep_checkout(open_directory: Path) -> None:
    deep = open_directory / "/".join(["a-rather-long-name"] * 6)
    deep.mkdir(parents=True)
    layout = Layout.of(deep, {"SVC_DATA_DIR": str(deep)})
    layout.create()
    try:
        assert len(os.fsencode(layout.sockets / "supervisor.sock")) < 100
        assert _mode(layout.sockets) == 0o700
    finally:
        layout.sockets.rmdir()
