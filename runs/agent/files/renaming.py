"""Renaming to a name that nobody has, so that what somebody makes meanwhile is not replaced.

The kernel does it in one step (`RENAME_NOREPLACE`), on most disks. Where it does not, a file gets
its new name by a link, and a folder takes the place of an empty one made for it; neither replaces
what others have made. The guarantee does not hold for a file where the kernel, the disk and the
file's owner leave no other way than to look and then rename: on a disk that knows no links either,
or with `fs.protected_hardlinks` for a file that the user may not read and write.
"""

from __future__ import annotations

import errno
import os
import stat

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
# What `renameat2(2)` fails with where kernel, disk or sandbox do not have it. EINVAL is also that
# of a folder which is to be moved into itself.
_NO_SUPPORT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)


def rename_new(source: bytes, target: bytes) -> None:
    """Rename; raises FileExistsError when something has the name, and OSError as `os.rename`."""
    try:
        _rename_noreplace(source, target)
        return
    except OSError as error:
        if error.errno not in _NO_SUPPORT:
            raise
    status = os.lstat(source)
    if stat.S_ISDIR(status.st_mode):
        _rename_folder(source, target)
    else:
        _rename_file(source, target, status)


def _rename_noreplace(source: bytes, target: bytes) -> None:
    # Its import takes memory in each process, and most calls rename nothing.
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise _failure(errno.ENOSYS)  # a C library from before 2018
    flags = ctypes.c_uint(_RENAME_NOREPLACE)
    if rename(_AT_FDCWD, source, _AT_FDCWD, target, flags):
        raise _failure(ctypes.get_errno())


def _rename_folder(source: bytes, target: bytes) -> None:
    above = os.path.realpath(os.path.dirname(target))
    if os.path.join(above, b"").startswith(os.path.join(os.path.realpath(source), b"")):
        raise _failure(errno.EINVAL)
    # A folder replaces an empty one and nothing else, so what comes into this one meanwhile stays.
    os.mkdir(target)
    try:
        os.rename(source, target)
    except OSError as error:
        try:
            os.rmdir(target)
        except OSError:
            pass
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _failure(errno.EEXIST) from None
        raise


def _rename_file(source: bytes, target: bytes, status: os.stat_result) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(target):
            raise _failure(errno.EEXIST) from None
        os.rename(source, target)
        return
    try:
        # What has come under the old name since is another file, and stays.
        if os.path.samestat(os.lstat(source), os.lstat(target)):
            os.unlink(source)
    except FileNotFoundError:
        pass  # somebody has removed one of the two names
    except OSError:
        os.unlink(target)
        raise


def _failure(number: int) -> OSError:
    return OSError(number, os.strerror(number))
