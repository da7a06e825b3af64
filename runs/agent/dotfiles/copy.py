"""The manager `copy`: the checkout's files, modes and links, put over what the target has."""

from __future__ import annotations

import os
import stat
import sys

from .detection import VCS_NAMES
from .tree import Folder


def apply(source: Folder, target: Folder) -> None:
    """Copy all but version control's own files. Links are copied as links, never followed."""
    for name in source.names():
        if name in VCS_NAMES:
            continue
        found = source.find(name)
        if found is None:
            continue
        mode = stat.S_IMODE(found.st_mode) & 0o777
        if stat.S_ISDIR(found.st_mode):
            # The owner needs to enter and fill what is copied.
            with source.enter(name) as below, target.make(name, mode | 0o700) as into:
                apply(below, into)
        elif stat.S_ISLNK(found.st_mode):
            target.put_link(name, os.readlink(name, dir_fd=source.fd))
        elif stat.S_ISREG(found.st_mode):
            descriptor = source.open_file(name)
            try:
                target.put_file(name, descriptor, mode)
            finally:
                os.close(descriptor)
        else:
            print(
                f"skipped {source.path_of(name)}: neither file, directory nor link", file=sys.stderr
            )
