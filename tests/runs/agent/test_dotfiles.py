"""Dotfiles: applied once, as the user, into the home and nowhere else."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from runs.agent.dotfiles.detection import detect
from tests.runs.agent.booted import USER, Boot, Workspace


class Checkout:
    """A dotfiles checkout as it lies in an image."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.path = workspace.root / "dotfiles"
        self.path.mkdir()

    def add(self, name: str, content: str = "", mode: int = 0o644) -> None:
        """Add a file."""
        place = self.path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
        place.chmod(mode)

    def boot(self, manager: str, **members: object) -> Boot:
        """Boot with these dotfiles."""
        dotfiles: dict[str, object] = {
            "path": str(self.path),
            "manager": manager,
            "target": "home",
            "bootstrap": False,
            "bootstrapCommand": None,
        }
        env = members.pop("env", {})
        return self.workspace.boot(dotfiles=dotfiles | members, env=env)

    def applied(self, manager: str, **members: object) -> Path:
        """Boot, see it succeed, and return the home."""
        status = self.boot(manager, **members).settle()
        assert status["phase"] == "ready", status
        return self.workspace.home

    def refused(self, manager: str, **members: object) -> str:
        """Boot, see the dotfiles fail, and return what was said."""
        boot = self.boot(manager, **members)
        status = boot.settle()
        assert boot.wait() == 70
        assert status["phase"] == "failed"
        assert status["step"]["name"] == "dotfiles"
        assert status["step"]["kind"] == "dotfiles"
        tail: str = status["tail"]
        return tail


@pytest.fixture
def checkout(workspace: Workspace) -> Checkout:
    return Checkout(workspace)


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder with its content."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_copy_takes_everything_but_version_control(checkout: Checkout) -> None:
    checkout.add(".bashrc", "new")
    checkout.add(".config/tool/settings", "x")
    checkout.add(".git/config", "[core]")
    checkout.add("nested/.git", "gitdir: elsewhere")
    checkout.add(".gitignore", "*.swp")
    (checkout.workspace.home / ".bashrc").write_text("old")
    home = checkout.applied("copy")
    assert tree(home) == {".bashrc": "new", ".config/tool/settings": "x", ".gitignore": "*.swp"}


def test_copy_keeps_modes_and_links_and_gives_all_to_the_user(checkout: Checkout) -> None:
    checkout.add("bin/tool", "#!/bin/sh\n", 0o755)
    checkout.add("secret", "x", 0o600)
    (checkout.path / "dangling").symlink_to("/no/such/file")
    shutil.chown(checkout.path / "secret", USER)
    home = checkout.applied("copy")
    assert stat.S_IMODE((home / "bin/tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((home / "secret").stat().st_mode) == 0o600
    assert (home / "dangling").readlink() == Path("/no/such/file")
    assert {path.owner() for path in (home / "bin", home / "bin/tool", home / "secret")} == {USER}


def test_copy_into_the_configuration_folder(checkout: Checkout) -> None:
    checkout.add("tool/settings", "x")
    assert tree(checkout.applied("copy", target="config")) == {".config/tool/settings": "x"}


def test_a_link_in_the_checkout_is_copied_and_not_followed(checkout: Checkout) -> None:
    outside = checkout.workspace.root / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    (outside / "file").write_text("outside")
    (checkout.path / ".ssh").symlink_to(outside)
    home = checkout.applied("copy")
    assert (home / ".ssh").is_symlink()
    assert tree(outside) == {"file": "outside"}


@pytest.mark.parametrize("manager", ["copy", "chezmoi"])
def test_a_link_in_the_home_leads_no_file_out_of_it(checkout: Checkout, manager: str) -> None:
    outside = checkout.workspace.root / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    (checkout.workspace.home / ".ssh").symlink_to(outside)
    checkout.add(".ssh/authorized_keys" if manager == "copy" else "dot_ssh/authorized_keys", "mine")
    assert ".ssh is a symbolic link" in checkout.refused(manager)
    assert tree(outside) == {}


def test_a_link_in_place_of_a_file_is_replaced_and_not_written_through(checkout: Checkout) -> None:
    outside = checkout.workspace.root / "outside"
    outside.write_text("untouched")
    outside.chmod(0o666)
    (checkout.workspace.home / ".bashrc").symlink_to(outside)
    checkout.add(".bashrc", "new")
    home = checkout.applied("copy")
    assert not (home / ".bashrc").is_symlink()
    assert (home / ".bashrc").read_text() == "new"
    assert outside.read_text() == "untouched"


def test_a_configuration_folder_that_is_a_link_is_refused(checkout: Checkout) -> None:
    outside = checkout.workspace.root / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    (checkout.workspace.home / ".config").symlink_to(outside)
    checkout.add("settings", "x")
    assert ".config is a symbolic link" in checkout.refused("copy", target="config")
    assert tree(outside) == {}


def test_a_file_in_place_of_a_folder_is_an_error_that_names_it(checkout: Checkout) -> None:
    (checkout.workspace.home / ".vimrc").mkdir()
    (checkout.workspace.home / ".vimrc" / "kept").touch()
    checkout.add(".vimrc", "x")
    assert ".vimrc is a directory where the dotfiles have a file" in checkout.refused("copy")
    assert not list(checkout.workspace.home.glob("*.new"))


def test_names_need_not_be_text(checkout: Checkout) -> None:
    name = os.fsdecode(b"odd \xff\n name")
    checkout.add(name, "x")
    assert (checkout.applied("copy") / name).read_text() == "x"


def test_a_named_pipe_does_not_hold_the_boot(checkout: Checkout) -> None:
    os.mkfifo(checkout.path / "pipe")
    checkout.add("file", "x")
    assert tree(checkout.applied("copy")) == {"file": "x"}


def test_dotfiles_are_applied_on_the_first_boot_only(checkout: Checkout) -> None:
    checkout.add(".bashrc", "from the checkout")
    first = checkout.boot("copy")
    assert first.settle()["phase"] == "ready"
    first.stop()
    (checkout.workspace.home / ".bashrc").write_text("changed by hand")
    assert (checkout.applied("copy") / ".bashrc").read_text() == "changed by hand"


def test_a_missing_checkout_is_a_clear_failure(checkout: Checkout) -> None:
    checkout.path.rmdir()
    assert f"cannot open the directory {checkout.path}: No such file" in checkout.refused("copy")


def test_the_install_script_runs_as_the_user_where_it_lies(checkout: Checkout) -> None:
    checkout.add("install.sh", '#!/bin/sh\n{ pwd; id -un; } > "$HOME/bootstrapped"\n', 0o755)
    home = checkout.applied("copy", bootstrap=True)
    assert (home / "bootstrapped").read_text() == f"{checkout.path}\n{USER}\n"


def test_an_install_script_that_is_absent_or_not_executable_is_no_error(checkout: Checkout) -> None:
    checkout.add("install.sh", "touch ~/bootstrapped", 0o644)
    home = checkout.applied("copy", bootstrap=True)
    assert not (home / "bootstrapped").exists()


def test_a_bootstrap_command_replaces_the_install_script(checkout: Checkout) -> None:
    checkout.add("install.sh", "#!/bin/sh\ntouch ~/by-script\n", 0o755)
    home = checkout.applied("copy", bootstrap=True, bootstrapCommand="touch ~/by-command")
    assert (home / "by-command").exists()
    assert not (home / "by-script").exists()


def test_without_bootstrap_no_script_is_run(checkout: Checkout) -> None:
    checkout.add("install.sh", "#!/bin/sh\ntouch ~/bootstrapped\n", 0o755)
    assert not (checkout.applied("copy") / "bootstrapped").exists()


def test_a_failing_bootstrap_fails_the_step_named_dotfiles(checkout: Checkout) -> None:
    boot = checkout.boot("copy", bootstrap=True, bootstrapCommand="echo broken; exit 4")
    status = boot.settle()
    assert status["step"]["name"] == "dotfiles"
    assert status["step"]["index"] == 1
    assert status["step"]["exitCode"] == 4
    assert status["tail"] == "broken\n"


def test_stow_that_is_not_installed_is_asked_for(checkout: Checkout) -> None:
    checkout.add("bash/.bashrc", "x")
    assert "add the package stow" in checkout.refused("stow", env={"PATH": "/nowhere"})


@pytest.mark.parametrize(
    ("files", "manager"),
    [
        (["dot_bashrc"], "chezmoi"),
        (["private_notes"], "chezmoi"),
        ([".chezmoiroot", "home/dot_bashrc"], "chezmoi"),
        ([".chezmoiversion", "plain"], "chezmoi"),
        ([".chezmoi.toml.tmpl", "plain"], "chezmoi"),
        (["bash/.bashrc", "bash/.stow-local-ignore"], "stow"),
        (["bash/.bashrc", ".stowrc"], "stow"),
        (["bash/.bashrc", "install.sh"], "copy"),
        ([".bashrc", ".git/dot_is_not_looked_at"], "copy"),
        ([], "copy"),
    ],
)
def test_auto_finds_the_manager_by_its_marks(
    tmp_path: Path, files: list[str], manager: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert detect(str(tmp_path)) == manager


def test_auto_applies_what_it_has_found(checkout: Checkout) -> None:
    checkout.add("dot_bashrc", "x")
    assert tree(checkout.applied("auto")) == {".bashrc": "x"}


def test_the_chezmoi_program_is_used_where_it_is_installed(checkout: Checkout) -> None:
    program = checkout.workspace.root / "bin" / "chezmoi"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$HOME/arguments"\n')
    program.chmod(0o755)
    checkout.add("dot_bashrc.tmpl", "{{ .name }}")
    home = checkout.applied("auto", env={"PATH": f"{program.parent}:/usr/bin:/bin"})
    assert (home / "arguments").read_text().split() == [
        "--no-tty",
        "--force",
        "--source",
        str(checkout.path),
        "--destination",
        str(home),
        "apply",
    ]


def test_a_chezmoi_program_that_fails_fails_the_step(checkout: Checkout) -> None:
    program = checkout.workspace.root / "bin" / "chezmoi"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "template: no value" >&2\nexit 3\n')
    program.chmod(0o755)
    checkout.add("dot_bashrc", "x")
    refused = checkout.refused("chezmoi", env={"PATH": f"{program.parent}:/usr/bin:/bin"})
    assert "template: no value" in refused
    assert "chezmoi failed with exit code 3" in refused
