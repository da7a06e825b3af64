"""The control plane's calls: sandboxes are workspaces that were made here.

What E2B knows of a sandbox and we do not is kept in environment variables of its blueprint, which
are no part of its image: its template, its metadata, and what becomes of it at its time's end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

import structlog

from controlplane_client import (
    AsyncClient,
    AsyncWorkspace,
    ControlPlaneError,
    NotFound,
    WorkspaceInfo,
    default_repository,
)
from e2bfacade.facade_settings import FacadeSettings
from e2bfacade.http_call import Exchange, member, number, text, texts
from e2bfacade.refused import Refused, sandbox_not_found, unsupported
from e2bfacade.sandbox_access import Callers
from e2bfacade.templates import Templates

ENVD_VERSION = "0.5.7"
"""What the SDKs take this for: newer ones would be asked for metadata of files."""
DEFAULT_SECONDS, LEAST_SECONDS, MOST_SECONDS = 300, 10, 31_622_400
PAGE = 100
STOP_SECONDS = 60.0
DELETE_SECONDS = 5.0
"""The SDKs give a call up after 30 or 60 seconds; usually it takes half a second."""
TEMPLATE, METADATA, ON_TIMEOUT = "E2B_TEMPLATE_ID", "E2B_METADATA", "E2B_ON_TIMEOUT"
_AT_ONCE = 8
_PREFIX = "e2b/"
_FOREVER = "9999-12-31T23:59:59Z"
_METRICS = """
import json, os, time
def used(path="/proc/stat"):
    first = [int(n) for n in open(path).readline().split()[1:]]
    return sum(first), sum(first) - first[3] - first[4]
a = used(); time.sleep(0.1); b = used()
m = {k: int(v.split()[0]) * 1024 for k, v in (l.split(":") for l in open("/proc/meminfo"))}
d = os.statvfs("/")
print(json.dumps({"cpuCount": os.cpu_count() or 1,
    "cpuUsedPct": round(100 * (b[1] - a[1]) / max(1, b[0] - a[0]), 2),
    "memTotal": m["MemTotal"], "memUsed": m["MemTotal"] - m["MemAvailable"],
    "memCache": m.get("Cached", 0), "diskTotal": d.f_blocks * d.f_frsize,
    "diskUsed": (d.f_blocks - d.f_bfree) * d.f_frsize}))
"""

logger = structlog.get_logger(__name__)


class Sandboxes:
    """Answers ``/sandboxes`` and ``/templates``."""

    def __init__(self, settings: FacadeSettings, callers: Callers) -> None:
        self._settings, self._callers = settings, callers
        self._templates = Templates(settings.templates)
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, exchange: Exchange) -> None:
        """Answer one call. Raises ``Refused`` and the client's errors."""
        method, parts = exchange.method, exchange.parts
        if parts[0] in {"v2", "v3"}:
            parts = parts[1:]
        match (method, parts):
            case ("POST", ["sandboxes"]):
                await self._create(exchange)
            case ("GET", ["sandboxes"]):
                await self._list(exchange)
            case ("GET", ["sandboxes", sandbox_id]):
                info = await self._existing(exchange, sandbox_id)
                await exchange.answer_json(200, self._detail(exchange, info))
            case ("DELETE", ["sandboxes", sandbox_id]):
                await self._kill(exchange, sandbox_id)
            case ("POST", ["sandboxes", sandbox_id, "timeout" | "refreshes" as what]):
                await self._set_timeout(exchange, sandbox_id, what)
            case ("POST", ["sandboxes", sandbox_id, "connect" | "resume"]):
                await self._connect(exchange, sandbox_id)
            case ("POST", ["sandboxes", sandbox_id, "pause"]):
                await self._pause(exchange, sandbox_id)
            case ("GET", ["sandboxes", sandbox_id, "metrics"]):
                await self._metrics(exchange, sandbox_id)
            case ("GET", ["templates"]):
                self._callers.client_of(exchange)
                told = [_template(name) for name in self._templates.names()]
                await exchange.answer_json(200, told)
            case ("GET", ["templates", "aliases", name]):
                self._callers.client_of(exchange)
                self._templates.blueprint(name)
                await exchange.answer_json(200, {"templateID": name, "public": False})
            case _:
                raise unsupported(f"{method} /{'/'.join(parts)[:100]}")

    # ------------------------------------------------------------ create

    async def _create(self, exchange: Exchange) -> None:
        body = await exchange.json()
        client = self._callers.client_of(exchange)
        spec = self._blueprint(body)
        seconds = _seconds(number(body, "timeout", DEFAULT_SECONDS))
        key = exchange.headers.get("idempotency-key")
        self._later(self._sweep(client))
        workspace = await client.create(
            spec,
            repository=_PREFIX + default_repository(client.owner).removeprefix("workspaces/"),
            registry=self._settings.registry,
            name=f"e2b {text(body, 'templateID')}",
            ttl=seconds,
            wait=False,
            idempotency_key=key,
        )

        async def finish() -> None:
            await workspace.wait_ready()
            info = await workspace.refresh()
            await exchange.answer_json(201, self._sandbox(client, info))

        try:
            done = await exchange.while_connected(finish())
        except ControlPlaneError:
            self._later(_deleted(workspace))
            raise
        if not done and key is None:
            # Nobody has its id, and nobody can ask for it again.
            self._later(_deleted(workspace))

    def _blueprint(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the blueprint of a request. Raises ``Refused`` for what we have not."""
        for name, what in (
            ("mcp", "MCP servers of E2B (mcp)"),
            ("iam", "workload identities (iam)"),
            ("volumeMounts", "volumes (volumeMounts)"),
        ):
            if body.get(name):
                raise unsupported(what)
        if {k for k, v in member(body, "network").items() if v not in (None, [], {})} - {
            "allowPublicTraffic"
        }:
            raise unsupported("rules for the network (network); allow_internet_access it does")
        if member(body, "autoResume").get("enabled"):
            raise unsupported("resuming by itself (autoResume)")
        template = text(body, "templateID")
        spec = self._templates.blueprint(template)
        runtime = spec["runtime"] = dict(member(spec, "runtime"))
        metadata = texts(body, "metadata")
        runtime["env"] = {
            **texts(runtime, "env"),
            **texts(body, "envVars"),
            "E2B_SANDBOX": "true",
            TEMPLATE: template,
            **({METADATA: json.dumps(metadata)} if metadata else {}),
            **({ON_TIMEOUT: "pause"} if body.get("autoPause") else {}),
        }
        if body.get("autoPause") and runtime.get("persistence") != "persistent":
            raise _not_persistent(template)
        if body.get("allow_internet_access") is False:
            runtime["network"] = {**member(runtime, "network"), "outbound": False}
        return spec

    # ------------------------------------------------------------ read

    def _sandbox(self, client: AsyncClient, info: WorkspaceInfo) -> dict[str, Any]:
        env = _env(info)
        return {
            "sandboxID": info.id,
            "templateID": env.get(TEMPLATE, "base"),
            "alias": env.get(TEMPLATE, "base"),
            "clientID": "",
            "envdVersion": ENVD_VERSION,
            "envdAccessToken": self._callers.token_of(client, info.id),
            **({"domain": self._settings.ports_domain} if self._settings.ports_domain else {}),
        }

    def _detail(self, exchange: Exchange, info: WorkspaceInfo) -> dict[str, Any]:
        client = self._callers.client_of(exchange)
        return {**_listed(info), **self._sandbox(client, info)}

    async def _list(self, exchange: Exchange) -> None:
        client = self._callers.client_of(exchange)
        query = exchange.query
        states = {each for each in query.get("state", "").split(",") if each}
        wanted = {unquote(k): unquote(v) for k, v in parse_qsl(query.get("metadata", ""))}
        limit = min(max(number(query, "limit", PAGE), 1), PAGE)
        after = query.get("nextToken", "")
        found: list[dict[str, Any]] = []
        following = ""
        async for info in self._made_here(client):
            if after and info.id >= after:
                continue
            told = _listed(info)
            if states and told["state"] not in states:
                continue
            if not wanted.items() <= told["metadata"].items():
                continue
            if query.get("template", told["templateID"]) != told["templateID"]:
                continue
            if len(found) == limit:
                following = found[-1]["sandboxID"]
                break
            found.append(told)
        if query.get("order") == "asc" and not following:
            found.reverse()
        await exchange.answer_json(200, found, {"x-next-token": following} if following else {})

    async def _made_here(self, client: AsyncClient) -> AsyncIterator[WorkspaceInfo]:
        """Give the sandboxes of an owner, the newest first; ids are ordered as their times are."""
        batch: list[WorkspaceInfo] = []
        async for info in client.workspaces():
            if str(info.raw.get("repository", "")).startswith(_PREFIX):
                batch.append(info)
            if len(batch) == _AT_ONCE:
                for each in await _with_details(client, batch):
                    yield each
                batch = []
        for each in await _with_details(client, batch):
            yield each

    async def _existing(self, exchange: Exchange, sandbox_id: str) -> WorkspaceInfo:
        """Return a sandbox that runs or is paused. Raises ``Refused``."""
        workspace = self._callers.client_of(exchange).workspace(_checked(sandbox_id))
        try:
            info = await workspace.refresh()
        except NotFound:
            raise sandbox_not_found(sandbox_id) from None
        if not _is_there(info):
            raise sandbox_not_found(sandbox_id)
        return info

    # ------------------------------------------------------------ life

    async def _kill(self, exchange: Exchange, sandbox_id: str) -> None:
        info = await self._existing(exchange, sandbox_id)
        workspace = self._callers.client_of(exchange).workspace(info.id)
        await workspace.delete(wait=False)
        with suppress(ControlPlaneError, TimeoutError):
            # It is being deleted whatever happens, and is not to be found any more.
            await asyncio.wait_for(_until_deleted(workspace), DELETE_SECONDS)
        await exchange.answer(204)

    async def _set_timeout(self, exchange: Exchange, sandbox_id: str, what: str) -> None:
        body = await exchange.json()
        name = "timeout" if what == "timeout" else "duration"
        seconds = _seconds(number(body, name, 0 if what == "timeout" else 15))
        info = await self._existing(exchange, sandbox_id)
        if _state(info) != "running":
            raise sandbox_not_found(sandbox_id)
        workspace = self._callers.client_of(exchange).workspace(info.id)
        if what == "timeout" or seconds > _left(info):
            await workspace.set_ttl(seconds)
        await exchange.answer(204)

    async def _connect(self, exchange: Exchange, sandbox_id: str) -> None:
        body = await exchange.json()
        seconds = _seconds(number(body, "timeout", DEFAULT_SECONDS))
        info = await self._existing(exchange, sandbox_id)
        client = self._callers.client_of(exchange)
        workspace = client.workspace(info.id)
        was_paused = _state(info) != "running"

        async def finish() -> None:
            if was_paused:
                await workspace.start()
            elif info.status != "ready":
                await workspace.wait_ready()
            if was_paused or seconds > _left(info):
                await workspace.set_ttl(seconds)
            told = self._detail(exchange, await workspace.refresh())
            await exchange.answer_json(201 if was_paused else 200, told)

        await exchange.while_connected(finish())

    async def _pause(self, exchange: Exchange, sandbox_id: str) -> None:
        await exchange.read()
        info = await self._existing(exchange, sandbox_id)
        if _state(info) != "running":
            raise Refused(409, "failed_precondition", f"Sandbox {info.id} is paused already")
        if info.raw.get("spec", {}).get("runtime", {}).get("persistence") != "persistent":
            raise _not_persistent(_env(info).get(TEMPLATE, "base"))
        await self._callers.client_of(exchange).workspace(info.id).stop(timeout=STOP_SECONDS)
        await exchange.answer(204)

    async def _metrics(self, exchange: Exchange, sandbox_id: str) -> None:
        info = await self._existing(exchange, sandbox_id)
        if info.status != "ready":
            raise sandbox_not_found(sandbox_id)
        workspace = self._callers.client_of(exchange).workspace(info.id)
        result = await workspace.exec(["python3", "-c", _METRICS], timeout=10)
        if not result.ok:
            raise Refused(
                500, "internal", f"The sandbox could not be measured: {result.stderr[-200:]}"
            )
        now = datetime.now(UTC)
        told = json.loads(result.stdout)
        times = {"timestamp": _moment(now), "timestampUnix": int(now.timestamp())}
        await exchange.answer_json(200, [{**told, **times}])

    # ------------------------------------------------------------ those whose time is over

    async def _sweep(self, client: AsyncClient) -> None:
        """Delete what was stopped because its time was over, as E2B does."""
        async for info in client.workspaces(status="stopped"):
            if str(info.raw.get("repository", "")).startswith(_PREFIX) and _has_expired(info):
                workspace = client.workspace(info.id)
                fresh = await workspace.refresh()
                # Somebody may have started it since it was listed.
                if _has_expired(fresh) and _env(fresh).get(ON_TIMEOUT) != "pause":
                    await workspace.delete(wait=False)
                    logger.info("expired_sandbox_deleted", workspace_id=info.id)

    def _later(self, work: Any) -> None:
        async def done() -> None:
            try:
                await work
            except ControlPlaneError as error:
                logger.warning("sandbox_not_deleted", error=str(error))

        task = asyncio.ensure_future(done())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _deleted(workspace: AsyncWorkspace) -> None:
    await workspace.delete(wait=False)


async def _until_deleted(workspace: AsyncWorkspace) -> None:
    async with aclosing(workspace.follow("latest")) as events:
        async for event in events:
            if event.type == "end" or event.data.get("status") == "deleted":
                return


async def _with_details(client: AsyncClient, batch: list[WorkspaceInfo]) -> list[WorkspaceInfo]:
    async def read(info: WorkspaceInfo) -> WorkspaceInfo | None:
        with suppress(NotFound):
            return await client.workspace(info.id).refresh()
        return None

    found = await asyncio.gather(*(read(info) for info in batch))
    return [info for info in found if info is not None and _is_there(info)]


def _checked(sandbox_id: str) -> str:
    if not sandbox_id.replace("-", "").isalnum():
        raise sandbox_not_found(sandbox_id)
    return sandbox_id


def _seconds(asked: int) -> int:
    return min(max(asked, LEAST_SECONDS), MOST_SECONDS)


def _env(info: WorkspaceInfo) -> dict[str, str]:
    return dict((info.raw.get("spec") or {}).get("runtime", {}).get("env", {}))


def _state(info: WorkspaceInfo) -> str:
    return "paused" if info.status == "stopped" else "running"


def _is_there(info: WorkspaceInfo) -> bool:
    """Tell whether E2B would say that it is there: made here, running or paused."""
    if TEMPLATE not in _env(info) or info.status not in {"ready", "running", "queued", "stopped"}:
        return False
    if is_being_deleted(info):
        return False
    return not (_has_expired(info) and _env(info).get(ON_TIMEOUT) != "pause")


def is_being_deleted(info: WorkspaceInfo) -> bool:
    """Tell whether its deletion was asked for; its status is what it was until then."""
    return info.reason is not None and info.reason.code == "deleting"


def _has_expired(info: WorkspaceInfo) -> bool:
    """Tell whether it was stopped because its time was over, not because somebody asked for it."""
    return info.status == "stopped" and info.reason is not None and info.reason.code == "expired"


def _left(info: WorkspaceInfo) -> float:
    """Return for how many seconds it goes on."""
    if info.expires_at is None:
        return float(MOST_SECONDS)
    return (info.expires_at - datetime.now(UTC)).total_seconds()


def _listed(info: WorkspaceInfo) -> dict[str, Any]:
    env = _env(info)
    runtime = info.raw["spec"].get("runtime", {})
    resources = runtime.get("resources") or {}
    try:
        metadata = json.loads(env.get(METADATA, "{}"))
    except ValueError:
        metadata = {}
    return {
        "sandboxID": info.id,
        "templateID": env[TEMPLATE],
        "alias": env[TEMPLATE],
        "clientID": "",
        "startedAt": info.raw.get("startedAt") or info.raw["createdAt"],
        "endAt": info.raw.get("expiresAt") or _FOREVER,
        "state": _state(info),
        "metadata": metadata if isinstance(metadata, dict) else {},
        "envdVersion": ENVD_VERSION,
        # Nothing is told where the operator's limit counts, which the blueprint does not know.
        "cpuCount": int(resources.get("cpus") or 0),
        "memoryMB": int(resources.get("memoryMb") or 0),
        "diskSizeMB": 0,
        "allowInternetAccess": (runtime.get("network") or {}).get("outbound", True),
    }


def _template(name: str) -> dict[str, Any]:
    return {
        "templateID": name,
        "buildID": name,
        "aliases": [name],
        "names": [name],
        "public": False,
        "cpuCount": 0,
        "memoryMB": 0,
        "diskSizeMB": 0,
        "createdAt": "1970-01-01T00:00:00Z",
        "updatedAt": "1970-01-01T00:00:00Z",
        "lastSpawnedAt": None,
        "spawnCount": 0,
        "buildCount": 1,
        "envdVersion": ENVD_VERSION,
        "buildStatus": "ready",
        "createdBy": None,
    }


def _not_persistent(template: str) -> Refused:
    return Refused(
        409,
        "failed_precondition",
        f"A sandbox of the template {template} loses its files when it is paused. To allow "
        'pausing, the operator gives its blueprint "runtime": {"persistence": "persistent"}.',
    )


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
