"""`agent credentials deliver | collect | withdraw`: called by the control plane, as root.

Documents come on stdin. With `--wait` a delivery goes on as `status --wait`: whoever launches would
ask for that next, and each call through the engine takes its time. Exit codes: 0 done; 2 the
document is refused; 3 it could not be kept and nothing has changed; 4 this workspace has no place
for credentials.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Dict, FrozenSet, List, Optional, Tuple

from ..config import Config, ConfigError, load
from ..status_command import show
from .account_store import CODEX, CredentialSet, NoPlace, Store, path_of, read_renewable, read_set
from .child_environment import account_of
from .document import MAX_BYTES, Account, parse, parse_withdrawal, renews
from .home import Home

EXIT_REFUSED = 2
EXIT_NOT_KEPT = 3
EXIT_NO_PLACE = 4

_GITCONFIG = "GIT_CONFIG_SYSTEM"


def run(action: str, config_path: str, state_directory: str, wait: Optional[float]) -> int:
    """Do what is asked; returns the exit code of the process."""
    os.umask(0o077)
    try:
        config = load(config_path)
        place = config.credentials
        if place is None:
            raise NoPlace("this workspace was started without credentials")
        if action == "deliver":
            _deliver(config, place, parse(_stdin()))
            if wait is not None:
                sys.stdout.flush()
                show(state_directory, wait)
        elif action == "withdraw":
            _withdraw(config, place, parse_withdrawal(_stdin()))
        else:
            _collect(config, place)
    except ConfigError as error:
        return _fail(str(error), EXIT_REFUSED)
    except NoPlace as error:
        return _fail(str(error), EXIT_NO_PLACE)
    except OSError as error:
        return _fail(f"the credentials cannot be kept: {error.strerror}", EXIT_NOT_KEPT)
    return 0


def _deliver(config: Config, place: str, accounts: Tuple[Account, ...]) -> None:
    home, store = _home(config, place), _store(config, place)
    try:
        made = CredentialSet(tuple(_newest(account, home) for account in accounts))
        made = _replace(store, home, made)
    finally:
        store.close()
    print(json.dumps({"notes": made.notes}))


def _withdraw(config: Config, place: str, ids: FrozenSet[str]) -> None:
    home, store = _home(config, place), _store(config, place)
    try:
        present = read_set(place)
        if present is None:
            return
        codex = present.of("codex")
        secret = _renewed(config, place, home) if codex is not None else None
        if codex is not None and secret is not None:
            others = [item for item in present.accounts if item is not codex]
            present = CredentialSet((*others, codex._replace(secret=secret)))
        _replace(store, home, present.without(ids), also=secret)
    finally:
        store.close()


def _collect(config: Config, place: str) -> None:
    present = read_set(place) or CredentialSet()
    found: List[Dict[str, str]] = []
    codex = present.of("codex")
    if codex is not None:
        secret = _renewed(config, place, _home(config, place))
        if secret is not None:
            found.append({"id": codex.id, "secret": secret})
    print(json.dumps(found))


def _replace(
    store: Store, home: Home, made: CredentialSet, *, also: Optional[str] = None
) -> CredentialSet:
    """Make this the present set; what it has in the home is there before anybody looks for it.

    `also`: what a tool has put in the place of its link, to be removed like that.
    """
    name = store.prepare(made)
    try:
        if made.of("codex") is not None:
            failure = home.link()
            if failure:
                made = made._replace(notes=(f"{home.path} could not be made: {failure}",))
                store.discard(name)
                name = store.prepare(made)
        store.publish(name)
    except BaseException:
        store.discard(name)
        raise
    if made.of("codex") is None:
        home.unlink(also=also)
    return made


def _newest(account: Account, home: Home) -> Account:
    """The account with what its tool has put into the home meanwhile, if that is newer.

    A tool may replace our link by its file; that file then outlives a restart, which the file in
    memory does not, and what was delivered then may not be valid any more.
    """
    if account.provider != "codex":
        return account
    found = home.found()
    if found is not None and renews(found, account.secret):
        return account._replace(secret=found)
    return account


def _renewed(config: Config, place: str, home: Home) -> Optional[str]:
    """The file that a tool renews as that tool sees it now."""
    beside = home.found()
    kept = read_renewable(place, account_of(config))
    if beside is not None and (kept is None or renews(beside, kept)):
        return beside
    return kept


def _home(config: Config, place: str) -> Home:
    return Home(config.home, config.env, account_of(config), path_of(place, *CODEX))


def _store(config: Config, place: str) -> Store:
    helper = (os.path.abspath(sys.argv[0]), "git-credential")
    gitconfig = config.env.get(_GITCONFIG, "/etc/gitconfig")
    return Store(place, account_of(config), helper, gitconfig)


def _stdin() -> bytes:
    return sys.stdin.buffer.read(MAX_BYTES + 1)


def _fail(message: str, code: int) -> int:
    print(f"agent: {message}", file=sys.stderr)
    return code
