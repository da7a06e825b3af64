"""Who user processes are and what they see: account, environment, working directory."""

from __future__ import annotations

import os
import pwd
from typing import Dict, Mapping

from ..config import Config, ConfigError
from ..process.program import Account
from . import account_store as store

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Set in images that trust a company's certificate authority; the only variables besides PATH and
# LANG that user processes inherit from PID 1.
_TRUST_VARIABLES = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE")


def account_of(config: Config) -> Account:
    """The configured user, or without root the one we run as; raises ConfigError."""
    if os.geteuid() != 0:
        return Account(config.user, os.geteuid(), os.getegid(), tuple(os.getgroups()))
    try:
        entry = pwd.getpwnam(config.user)
    except KeyError:
        raise ConfigError(f"the user {config.user} does not exist in this image") from None
    groups = tuple(os.getgrouplist(config.user, entry.pw_gid))
    return Account(config.user, entry.pw_uid, entry.pw_gid, groups)


def environment_of(config: Config, inherited: Mapping[str, str]) -> Dict[str, str]:
    """The whole environment of every user process: nothing else of PID 1's reaches it."""
    env = {
        "HOME": config.home,
        "USER": config.user,
        "LOGNAME": config.user,
        "SHELL": config.shell,
        "PATH": inherited.get("PATH") or _DEFAULT_PATH,
        "LANG": inherited.get("LANG") or "C.UTF-8",
    }
    env.update({name: inherited[name] for name in _TRUST_VARIABLES if inherited.get(name)})
    env.update(config.env)
    if config.credentials is not None:
        env.update(store.environment(config.credentials))
    env["SVC_RUN_ID"] = config.run_id
    return env


def make_directory(path: str, account: Account) -> None:
    """Create a folder and its missing parents for the user; what exists is left as it is.

    Raises ConfigError when that is not possible.
    """
    missing = []
    current = os.path.normpath(path)
    while not os.path.lexists(current):
        missing.append(current)
        current = os.path.dirname(current)
    try:
        for folder in reversed(missing):
            os.mkdir(folder, 0o755)
            if os.geteuid() == 0:
                os.chown(folder, account.uid, account.gid, follow_symlinks=False)
    except OSError as error:
        raise ConfigError(f"cannot create the directory {path}: {error.strerror}") from None
    if not os.path.isdir(path):
        raise ConfigError(f"{path} is not a directory")
