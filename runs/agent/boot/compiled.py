"""`agent compile`: the archive's modules as byte code beside it, made once with an image's Python.

It is done while an image is built, so that a start does not compile every module that it imports.
"""

from __future__ import annotations

import os
import py_compile
import sys
import tempfile
import zipfile
from typing import Optional


def compile_archive(archive: str, folder: Optional[str]) -> int:
    """Fill `folder` with the archive's modules; returns the exit code of the process.

    It is there whole or not at all. Its files are byte code without sources that is never compared
    with anything: the folder's name says what it belongs to.
    """
    if folder is None:
        print("agent: only an archive is compiled", file=sys.stderr)
        return 1
    if os.path.isdir(folder):
        return 0
    os.umask(0o022)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(folder)) as scratch:
        sources, made = os.path.join(scratch, "sources"), os.path.join(scratch, "made")
        with zipfile.ZipFile(archive) as file:
            names = [name for name in file.namelist() if "/" in name]
            file.extractall(sources, names)
        for name in names:
            place = os.path.join(made, name + "c")
            os.makedirs(os.path.dirname(place), exist_ok=True)
            py_compile.compile(
                os.path.join(sources, name),
                place,
                dfile=f"{archive}/{name}",
                doraise=True,
                optimize=2,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
        os.rename(made, folder)
    return 0
