"""chezmoi's source state read without the program: its plain part, and a refusal of the rest."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from runs.agent.dotfiles import chezmoi_source
from runs.agent.dotfiles.chezmoi_ignore import IgnorePatterns
from runs.agent.dotfiles.chezmoi_names import parse_directory, parse_file
from runs.agent.dotfiles.errors import DotfilesError
from runs.agent.dotfiles.tree import Folder


class Source:
    """A chezmoi source directory and a home."""

    def __init__(self, root: Path) -> None:
        self.path = root / "source"
        self.home = root / "home"
        self.path.mkdir()
        self.home.mkdir()

    def add(self, name: str, content: str = "x") -> None:
        place = self.path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)

    def apply(self) -> dict[str, str]:
        """Apply, and return every file of the home with its mode and content."""
        with Folder.open(str(self.path)) as source, Folder.open(str(self.home)) as target:
            chezmoi_source.apply(source, target)
        return self.tree()

    def tree(self) -> dict[str, str]:
        found = {}
        for folder, _, names in os.walk(self.home):
            for path in (Path(folder, name) for name in names):
                if path.is_symlink():
                    found[str(path.relative_to(self.home))] = f"-> {path.readlink()}"
                else:
                    mode = stat.S_IMODE(path.stat().st_mode)
                    found[str(path.relative_to(self.home))] = f"{mode:o} {path.read_text()}"
        return found


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def test_attributes_become_names_and_modes(source: Source) -> None:
    for name in [
        "dot_bashrc",
        "private_dot_netrc",
        "executable_run-me",
        "readonly_fixed",
        "private_readonly_executable_all",
        "literal_dot_kept",
        "dot_vimrc.literal",
        "template.tmpl.literal",
        "private_dot_ssh/config",
        "dot_config/dot_nested/file",
    ]:
        source.add(name)
    assert source.apply() == {
        ".bashrc": "644 x",
        ".netrc": "600 x",
        "run-me": "755 x",
        "fixed": "444 x",
        "all": "500 x",
        "dot_kept": "644 x",
        ".vimrc": "644 x",
        "template.tmpl": "644 x",
        ".ssh/config": "644 x",
        ".config/.nested/file": "644 x",
    }
    assert stat.S_IMODE((source.home / ".ssh").stat().st_mode) == 0o700


def test_an_empty_file_is_one_that_should_not_be_there(source: Source) -> None:
    source.add("dot_absent", "")
    source.add("empty_dot_present", "")
    (source.home / ".absent").write_text("from before")
    assert source.apply() == {".present": "644 "}


def test_a_symlink_entry_holds_the_target_of_the_link(source: Source) -> None:
    source.add("symlink_dot_editor", ".config/editor\n")
    assert source.apply() == {".editor": "-> .config/editor"}


def test_a_create_entry_leaves_an_existing_file_alone(source: Source) -> None:
    source.add("create_dot_existing", "new")
    source.add("create_private_dot_missing", "new")
    (source.home / ".existing").write_text("old")
    assert source.apply() == {".existing": "644 old", ".missing": "600 new"}


def test_an_exact_folder_loses_what_the_source_does_not_have(source: Source) -> None:
    source.add("exact_dot_config/kept")
    source.add(".chezmoiignore", ".config/ignored")
    for name in ["unknown", "folder/below", "ignored"]:
        place = source.home / ".config" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("old")
    assert source.apply() == {".config/kept": "644 x", ".config/ignored": "644 old"}


def test_an_exact_folder_does_not_follow_links_when_it_removes(
    source: Source, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    source.add("exact_dot_config/kept")
    (source.home / ".config").mkdir()
    (source.home / ".config" / "link").symlink_to(tmp_path / "outside")
    assert source.apply() == {".config/kept": "644 x"}
    assert (tmp_path / "outside" / "file").exists()


def test_remove_entries_remove_files_and_only_empty_folders(source: Source) -> None:
    source.add("remove_dot_old", "")
    source.add("remove_dot_full/dot_keep", "")
    source.add("remove_dot_hollow/dot_keep", "")
    (source.home / ".old").touch()
    (source.home / ".full").mkdir()
    (source.home / ".full" / "file").write_text("kept")
    (source.home / ".hollow").mkdir()
    assert source.apply() == {".full/file": "644 kept"}
    assert not (source.home / ".hollow").exists()


def test_a_readonly_folder_is_filled_before_it_is_closed(source: Source) -> None:
    source.add("readonly_dot_fixed/file")
    assert source.apply() == {".fixed/file": "644 x"}
    assert stat.S_IMODE((source.home / ".fixed").stat().st_mode) == 0o555


def test_the_root_may_be_a_folder_of_the_checkout(source: Source) -> None:
    source.add(".chezmoiroot", "home\n")
    source.add("home/dot_bashrc")
    source.add("README.md")
    assert source.apply() == {".bashrc": "644 x"}


@pytest.mark.parametrize("root", ["..", "/etc", "a/../../b", "missing"])
def test_a_root_outside_of_the_checkout_is_refused(source: Source, root: str) -> None:
    source.add(".chezmoiroot", root)
    with pytest.raises(DotfilesError, match="chezmoiroot"):
        source.apply()


def test_a_root_behind_a_link_is_refused(source: Source, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    source.add(".chezmoiroot", "linked")
    (source.path / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DotfilesError, match="symbolic link"):
        source.apply()


def test_dot_entries_of_the_source_are_not_targets(source: Source) -> None:
    for name in [".git/config", ".editorconfig", ".chezmoiremove", ".chezmoitemplates/part"]:
        source.add(name, "dot_bashrc")
    source.add("dot_bashrc")
    (source.home / "dot_bashrc").write_text("kept")
    assert source.apply() == {".bashrc": "644 x", "dot_bashrc": "644 kept"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dot_bashrc.tmpl", "is a template"),
        ("symlink_dot_link.tmpl", "is a template"),
        (".chezmoi.toml.tmpl", "is a template"),
        ("run_install.sh", "is a script"),
        ("run_once_before_install.sh", "is a script"),
        ("run_onchange_after_install.sh.tmpl", "is a template"),
        ("encrypted_private_dot_key.age", "is encrypted"),
        ("modify_dot_config", "is a script that modifies"),
        ("external_dot_oh-my-zsh/file", "describes an external"),
        (".chezmoiexternal.toml", "describes externals"),
        (".chezmoiexternals/tool.toml", "describes externals"),
        (".chezmoiscripts/run_once_setup.sh", "holds scripts"),
        ("below/dot_deep.tmpl", "is a template"),
    ],
)
def test_what_needs_the_program_is_refused_by_name_and_changes_nothing(
    source: Source, name: str, reason: str
) -> None:
    source.add("aaa_first")
    source.add(name)
    with pytest.raises(DotfilesError) as refused:
        source.apply()
    shown = name.split("/")[0] if name.startswith((".chezmoi", "external_")) else name
    assert f"{shown} {reason}" in str(refused.value)
    assert "use an operating system that has chezmoi" in str(refused.value)
    assert source.tree() == {}


def test_a_link_in_the_source_is_refused(source: Source) -> None:
    (source.path / "dot_bashrc").symlink_to("/etc/passwd")
    with pytest.raises(DotfilesError, match="symbolic link"):
        source.apply()


def test_an_ignored_entry_needs_no_program(source: Source) -> None:
    source.add(".chezmoiignore", "README.md\n.config/secret # needs a key\nscripts\n")
    source.add("README.md")
    source.add("dot_config/encrypted_secret")
    source.add("scripts/run_once.sh")
    source.add("dot_bashrc")
    assert source.apply() == {".bashrc": "644 x"}


def test_an_ignore_file_below_counts_from_its_own_folder(source: Source) -> None:
    source.add("dot_config/.chezmoiignore", "ignored")
    source.add("dot_config/ignored")
    source.add("ignored")
    assert source.apply() == {"ignored": "644 x"}


def test_an_ignore_file_that_is_a_template_is_refused(source: Source) -> None:
    source.add(".chezmoiignore", '{{ if eq .chezmoi.os "linux" }}\nx\n{{ end }}')
    with pytest.raises(DotfilesError, match=r"chezmoiignore is a template"):
        source.apply()


def test_two_entries_for_one_target_are_refused(source: Source) -> None:
    source.add("dot_bashrc")
    source.add("private_dot_bashrc")
    with pytest.raises(DotfilesError, match=r"both describe \.bashrc"):
        source.apply()


@pytest.mark.parametrize("name", ["dot_", "private_", "literal_", "dot_."])
def test_a_name_without_a_target_is_refused(source: Source, name: str) -> None:
    source.add(name)
    with pytest.raises(DotfilesError, match="does not name a target"):
        source.apply()


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*.txt", ["a.txt", ".txt"], ["a/b.txt", "a.txt.gz"]),
        ("*/*.txt", ["a/b.txt"], ["b.txt", "a/b/c.txt"]),
        ("**/*.txt", ["b.txt", "a/b.txt", "a/b/c.txt"], ["a.md"]),
        ("backups/", ["backups"], ["backup", "backups/file"]),
        ("backups/**", ["backups/file", "backups/a/b"], ["backups"]),
        ("file?", ["file1"], ["file", "file/"]),
        ("file[0-9]", ["file1"], ["filea"]),
        ("file[!0-9]", ["filea"], ["file1", "file/"]),
        ("{a,b*}/c", ["a/c", "bx/c"], ["c", "a,b/c"]),
        (r"a\*b", ["a*b"], ["axb"]),
        ("a+b(c).d", ["a+b(c).d"], ["aab(c)xd"]),
        ("name # a comment", ["name"], ["name # a comment"]),
        ("# only a comment", [], ["# only a comment", ""]),
    ],
)
def test_patterns(pattern: str, matching: list[str], others: list[str]) -> None:
    patterns = IgnorePatterns()
    patterns.read(pattern, "", ".chezmoiignore")
    assert [path for path in matching if not patterns.match(path)] == []
    assert [path for path in others if patterns.match(path)] == []


def test_an_exclusion_wins_wherever_it_stands() -> None:
    patterns = IgnorePatterns()
    patterns.read("!kept.txt\n*.txt\n", "", ".chezmoiignore")
    assert patterns.match("lost.txt")
    assert not patterns.match("kept.txt")


def test_prefixes_count_only_in_their_order() -> None:
    assert parse_file("dot_private_x").target == ".private_x"
    assert parse_file("executable_private_x").target == "private_x"
    assert parse_file("symlink_private_x").target == "private_x"
    assert parse_directory("private_exact_x").target == "exact_x"
    assert parse_directory("exact_private_dot_x").target == ".x"
    assert parse_directory("x.tmpl").target == "x.tmpl"
