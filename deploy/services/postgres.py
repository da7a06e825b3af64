"""PostgreSQL: a private server, and the question whether one that runs already lets us in."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from deploy.services.errors import MissingPartsError, SetupError
from deploy.services.private import PrivateService, find_program

ROLE = "svc"
DATABASE = "svc"
MINIMUM_VERSION = 15
_DEBIAN_ROOT = Path("/usr/lib/postgresql")


def find_binaries(version: str | None = None) -> Path | None:
    """The directory with `initdb` and `postgres`: of this major version, else the newest one."""
    candidates = [path.parent for path in _DEBIAN_ROOT.glob("*/bin/postgres")]
    on_path = find_program("postgres")
    if on_path is not None:
        candidates.append(on_path.resolve().parent)
    usable = {
        major: directory
        for directory in candidates
        if (directory / "initdb").exists() and (major := _major(directory)) >= MINIMUM_VERSION
    }
    if version is not None:
        return usable.get(int(version))
    return usable[max(usable)] if usable else None


def _major(binaries: Path) -> int:
    answer = subprocess.run(
        [binaries / "postgres", "--version"],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    words = answer.stdout.split()
    digits = words[2].split(".")[0] if len(words) > 2 else ""
    return int(digits) if digits.isdigit() else 0


class PrivatePostgres(PrivateService):
    """A PostgreSQL of our own, reachable on 127.0.0.1 only, with one role and one database."""

    name: ClassVar[str] = "PostgreSQL"
    accounts: ClassVar[tuple[str, ...]] = ("postgres", "nobody")
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # "fast": roll back and leave

    def __init__(self, root: Path, port: int | None, password: str) -> None:
        super().__init__(root, port)
        self._password = password

    @property
    def url(self) -> str:
        return (
            f"postgres://{ROLE}:{quote(self._password, safe='')}@127.0.0.1:{self.port}/{DATABASE}"
        )

    @property
    def settings(self) -> dict[str, str]:
        return {"DATABASE_URL": self.url}

    @property
    def _data(self) -> Path:
        return self.root / "data"

    @property
    def data_exists(self) -> bool:
        return (self._data / "PG_VERSION").exists()

    def prepare(self) -> None:
        if self.data_exists:
            return
        fresh = self.root / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        self.account.make_directory(fresh)
        password_file = self.root / "password"
        self.account.write(password_file, self._password + "\n")
        try:
            self._run(
                self._binaries / "initdb",
                f"--pgdata={fresh}",
                f"--username={ROLE}",
                f"--pwfile={password_file}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                "--data-checksums",
            )
        finally:
            password_file.unlink()
        # A set-up that dies half way must not leave what looks like a data directory.
        fresh.rename(self._data)

    def argv(self) -> list[str]:
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
        }
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return self.account.command(self._binaries / "postgres", "-D", self._data, *settings)

    def answers(self) -> bool:
        pg_isready = str(self._binaries / "pg_isready")
        probe = [pg_isready, "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(probe, timeout=10, check=False).returncode == 0

    def after_start(self) -> None:
        exists = f"select 1 from pg_database where datname = '{DATABASE}'"  # noqa: S608
        if self._sql(exists) != "1":
            self._sql(f'create database "{DATABASE}"')

    @property
    def _binaries(self) -> Path:
        version = None
        if self.data_exists:
            version = (self._data / "PG_VERSION").read_text().strip()
        binaries = find_binaries(version)
        if binaries is None:
            wanted = version or f"{MINIMUM_VERSION} or newer"
            raise MissingPartsError(f"PostgreSQL {wanted} is needed for {self.root}.")
        return binaries

    def _run(self, *argv: str | Path) -> None:
        done = subprocess.run(
            self.account.command(*argv),
            cwd=self.root,
            env=dict(self.environment()),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise SetupError(f"{Path(argv[0]).name} failed:\n{done.stderr.strip()}")

    def _sql(self, statement: str) -> str:
        done = subprocess.run(
            [
                *(self._binaries / "psql", "--no-psqlrc", "--no-password", "-qAt"),
                *("-h", "127.0.0.1", "-p", str(self.port), "-U", ROLE, "-d", "postgres"),
                *("-c", statement),
            ],
            env={**self.environment(), "PGPASSWORD": self._password},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if done.returncode != 0:
            raise SetupError(
                f"The PostgreSQL in {self.root} refuses the login: {done.stderr.strip()}\n"
                "Its password was generated together with its data; put the old one back."
            )
        return done.stdout.strip()


def found_url(database: str, socket_directory: Path = Path("/var/run/postgresql")) -> str | None:
    """The URL of a running server whose local socket lets our own account in and create databases.

    The database is created when absent; nothing else of that server is touched. None when there is
    no such server, it is too old, or it does not know us.
    """
    psql = find_program("psql")
    if psql is None or not list(socket_directory.glob(".s.PGSQL.*[0-9]")):
        return None
    may_create = (
        "select current_setting('server_version_num')::int / 10000 from pg_roles "
        "where rolname = current_user and (rolcreatedb or rolsuper)"
    )
    for socket in sorted(socket_directory.glob(".s.PGSQL.*[0-9]")):
        port = socket.name.rpartition(".")[2]

        def ask(statement: str, port: str = port) -> str | None:
            done = subprocess.run(
                [
                    *(psql, "--no-psqlrc", "--no-password", "-qAt", "-h", socket_directory),
                    *("-p", port, "-d", "postgres", "-c", statement),
                ],
                env={"PATH": os.environ.get("PATH", ""), "PGCONNECT_TIMEOUT": "3"},
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
            return done.stdout.strip() if done.returncode == 0 else None

        version = ask(may_create)
        if not version or int(version) < MINIMUM_VERSION:
            continue
        exists = f"select 1 from pg_database where datname = '{database}'"  # noqa: S608
        if ask(exists) == "1" or ask(f'create database "{database}"') is not None:
            user = quote(pwd.getpwuid(os.geteuid()).pw_name, safe="")
            host = quote(str(socket_directory), safe="")
            return f"postgres://{user}@{host}:{port}/{database}"
    return None
