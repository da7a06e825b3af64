"""What the gateway may be told. The rest of it knows nothing of Django."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The settings, times in seconds; ``deploy/README.md``, "SSH gateway", explains each."""

    host: str
    port: int
    prefix: str
    """What stands before the workspace's id in a user name."""
    banner: str
    api_base_url: str
    token: str
    docker_host: str
    engines: Path = Path("/nonexistent")
    """The folder of the engines besides that one."""
    host_key_path: Path
    recorded: bool
    """False: sessions are neither recorded nor refused when they cannot be."""
    record: dict[str, Any]
    """How they are recorded, as the session's spec says it."""
    accept_env: tuple[str, ...]
    forward_hosts: tuple[str, ...]
    login_grace: float
    idle_timeout: float
    """0: never."""
    keepalive: float
    keepalive_count: int
    disconnect_grace: float
    max_connections: int
    max_connections_per_principal: int
    max_channels: int
    max_logins: int
    max_keys: int
    failed_logins: int
    failed_login_window: float
    drain: float


def configured() -> Configuration:
    """Return what Django's settings say."""
    from django.conf import settings

    return Configuration(
        host=settings.SVC_BIND_HOST,
        port=settings.SVC_SSH_PORT,
        prefix=settings.SSH_GATEWAY_WORKSPACE_USERNAME_PREFIX,
        banner=settings.SSH_GATEWAY_BANNER,
        api_base_url=settings.SSH_GATEWAY_API_BASE_URL.rstrip("/"),
        token=settings.WORKSPACE_SSH_GATEWAY_TOKEN,
        docker_host=settings.DOCKER_HOST,
        engines=settings.SVC_DATA_DIR / "engines",
        host_key_path=Path(settings.SSH_GATEWAY_HOST_KEY_PATH),
        recorded=settings.SSH_GATEWAY_RECORD_POLICY == "require",
        record={
            "policy": settings.RUN_SPOOL_POLICY,
            "input": settings.RUN_INPUT_RECORDING,
            "spoolBytes": settings.RUN_SPOOL_BYTES,
            "segmentBytes": settings.RUN_SPOOL_SEGMENT_BYTES,
            "files": True,
            "network": True,
            "processes": True,
            "patchBytes": settings.RUN_CHANGES_PATCH_BYTES,
            "maxFiles": settings.RUN_CHANGES_MAX_FILES,
        },
        accept_env=tuple(settings.SSH_GATEWAY_ACCEPT_ENV),
        forward_hosts=tuple(settings.SSH_GATEWAY_FORWARD_HOSTS),
        login_grace=settings.SSH_GATEWAY_LOGIN_GRACE_MS / 1000,
        idle_timeout=settings.SSH_GATEWAY_IDLE_TIMEOUT_MS / 1000,
        keepalive=settings.SSH_GATEWAY_KEEPALIVE_MS / 1000,
        keepalive_count=settings.SSH_GATEWAY_KEEPALIVE_COUNT,
        disconnect_grace=settings.SSH_GATEWAY_DISCONNECT_GRACE_MS / 1000,
        max_connections=settings.SSH_GATEWAY_MAX_CONNECTIONS,
        max_connections_per_principal=settings.SSH_GATEWAY_MAX_CONNECTIONS_PER_PRINCIPAL,
        max_channels=settings.SSH_GATEWAY_MAX_CHANNELS,
        max_logins=settings.SSH_GATEWAY_MAX_LOGINS,
        max_keys=settings.SSH_GATEWAY_MAX_KEYS,
        failed_logins=settings.SSH_GATEWAY_FAILED_LOGINS,
        failed_login_window=settings.SSH_GATEWAY_FAILED_LOGIN_WINDOW_MS / 1000,
        drain=settings.SSH_GATEWAY_DRAIN_MS / 1000,
    )
