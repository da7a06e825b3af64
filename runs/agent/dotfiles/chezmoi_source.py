"""chezmoi's source state without chezmoi: plain files, folders, links and removals.

For systems that do not package the program. Everything is read and checked before anything is
written, so a source that needs the program (templates, scripts, encryption, externals) leaves the
home untouched and is refused with the name of the file that needs it.

Left out on purpose: `.chezmoiremove`, which would delete what the new home may need.
`.chezmoidata`, `.chezmoitemplates` and `.chezmoiversion` only matter to templates.
"""

from __future__ import annotations

import io
import os
import posixpath
import stat
from typing import Dict, FrozenSet, NamedTuple, NoReturn, Tuple

from .chezmoi_ignore import IgnorePatterns
from .chezmoi_names import SourceName, parse_directory, parse_file
from .errors import DotfilesError
from .tree import Folder

_UMASK = 0o022


class _Entry(NamedTuple):
    source: Tuple[str, ...]
    name: SourceName
    below: Tuple[_Entry, ...] = ()


def apply(source: Folder, target: Folder) -> None:
    """Bring the target to the state that the source describes.

    What needs the program raises DotfilesError before anything is changed.
    """
    with _root_of(source) as root:
        ignored = IgnorePatterns()
        _read_ignored(root, "", ignored)
        entries = _read(root, (), "", ignored)
        _write(root, entries, target, "", ignored, exact=False)


def _root_of(source: Folder) -> Folder:
    """The folder that `.chezmoiroot` names, or the checkout itself."""
    root = Folder(os.dup(source.fd), source.shown)
    if source.find(".chezmoiroot") is None:
        return root
    path = posixpath.normpath(source.read(".chezmoiroot").decode("utf-8", "replace").strip())
    for name in path.split("/"):
        if name in ("", ".."):
            raise DotfilesError(f"{source.path_of('.chezmoiroot')} leads out of the checkout")
        if name != ".":
            outer = root
            with outer:
                if outer.find(name) is None:
                    raise DotfilesError(f"{outer.path_of(name)}, named by .chezmoiroot, is missing")
                root = outer.enter(name)
    return root


def _read_ignored(folder: Folder, target_path: str, ignored: IgnorePatterns) -> None:
    """Patterns apply wherever their file stands, so they are known before any entry is judged."""
    for name in folder.names():
        if name in (".chezmoiignore", ".chezmoiignore.tmpl"):
            text = folder.read(name).decode("utf-8", "surrogateescape")
            if "{{" in text:
                _refuse(folder.path_of(name), "is a template")
            ignored.read(text, target_path, folder.path_of(name))
        elif not name.startswith(".") and _is_directory(folder, name):
            below_path = posixpath.join(target_path, parse_directory(name).target)
            with folder.enter(name) as below:
                _read_ignored(below, below_path, ignored)


def _read(
    folder: Folder, path: Tuple[str, ...], target_path: str, ignored: IgnorePatterns
) -> Tuple[_Entry, ...]:
    entries: Dict[str, _Entry] = {}
    for source_name in folder.names():
        shown = folder.path_of(source_name)
        if source_name.startswith("."):
            _check_special(source_name, shown)
            continue
        is_directory = _is_directory(folder, source_name)
        name = parse_directory(source_name) if is_directory else parse_file(source_name)
        entry_path = posixpath.join(target_path, name.target)
        if ignored.match(entry_path):
            continue
        _check(folder, source_name, name)
        below: Tuple[_Entry, ...] = ()
        source = (*path, source_name)
        if is_directory:
            with folder.enter(source_name) as inner:
                below = _read(inner, source, entry_path, ignored)
        if name.target in entries:
            other = entries[name.target].source[-1]
            raise DotfilesError(f"{shown} and {other} both describe {name.target}")
        entries[name.target] = _Entry(source, name, below)
    return tuple(entries[target] for target in sorted(entries))


def _check_special(name: str, shown: str) -> None:
    is_config = name.startswith(".chezmoi.") and name.endswith(".tmpl")
    if is_config:
        _refuse(shown, "is a template")
    if name.startswith(".chezmoiexternal"):
        _refuse(shown, "describes externals")
    if name.startswith(".chezmoiscripts"):
        _refuse(shown, "holds scripts")


def _check(folder: Folder, source_name: str, name: SourceName) -> None:
    shown = folder.path_of(source_name)
    if name.target in ("", ".", ".."):
        raise DotfilesError(f"{shown} does not name a target")
    found = folder.find(source_name)
    if found is None or not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        _refuse(shown, "is a symbolic link or a special file in the source")
    needs = {
        "template": "is a template",
        "encrypted": "is encrypted",
        "external": "describes an external",
    }
    for attribute, reason in needs.items():
        if attribute in name.attributes:
            _refuse(shown, reason)
    if name.type == "run":
        _refuse(shown, "is a script")
    if name.type == "modify":
        _refuse(shown, "is a script that modifies a file")


def _refuse(shown: str, reason: str) -> NoReturn:
    raise DotfilesError(
        f"{shown} {reason}: this needs the chezmoi program, which is not installed here; "
        "use an operating system that has chezmoi, or another dotfiles manager"
    )


def _is_directory(folder: Folder, name: str) -> bool:
    found = folder.find(name)
    return found is not None and stat.S_ISDIR(found.st_mode)


def _write(
    source: Folder,
    entries: Tuple[_Entry, ...],
    target: Folder,
    target_path: str,
    ignored: IgnorePatterns,
    exact: bool,
) -> None:
    for entry in entries:
        if entry.name.type == "directory":
            _write_directory(source, entry, target, target_path, ignored)
        elif entry.name.type == "remove":
            target.remove(entry.name.target)
        else:
            _write_file(source, entry, target)
    if exact:
        kept = {entry.name.target for entry in entries}
        for name in target.names():
            if name not in kept and not ignored.match(posixpath.join(target_path, name)):
                target.remove(name)


def _write_directory(
    source: Folder, entry: _Entry, target: Folder, target_path: str, ignored: IgnorePatterns
) -> None:
    name, attributes = entry.name.target, entry.name.attributes
    if "remove" in attributes:
        # chezmoi removes such a folder only when it is empty.
        if target.find(name) is not None and not _has_entries(target, name):
            target.remove(name)
        return
    mode = _mode(0o777, attributes)
    with source.enter(entry.source[-1]) as inner, target.make(name, mode | 0o700) as into:
        below_path = posixpath.join(target_path, name)
        _write(inner, entry.below, into, below_path, ignored, exact="exact" in attributes)
        os.fchmod(into.fd, mode)


def _has_entries(target: Folder, name: str) -> bool:
    with target.enter(name) as folder:
        return bool(list(folder.names()))


def _write_file(source: Folder, entry: _Entry, target: Folder) -> None:
    name, attributes = entry.name.target, entry.name.attributes
    if entry.name.type == "create" and target.find(name) is not None:
        return
    descriptor = source.open_file(entry.source[-1])
    try:
        if entry.name.type == "symlink":
            with io.open(os.dup(descriptor), "rb") as file:
                link = os.fsdecode(file.read().strip())
            target.put_link(name, link) if link else target.remove(name)
        elif os.fstat(descriptor).st_size == 0 and "empty" not in attributes:
            # By chezmoi's rules an empty file is one that should not be there.
            target.remove(name)
        else:
            base = 0o777 if "executable" in attributes else 0o666
            target.put_file(name, descriptor, _mode(base, attributes))
    finally:
        os.close(descriptor)


def _mode(base: int, attributes: FrozenSet[str]) -> int:
    mode = base & ~_UMASK
    if "private" in attributes:
        mode &= ~0o077
    if "readonly" in attributes:
        mode &= ~0o222
    return mode
