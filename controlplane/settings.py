"""Settings of every process, read from the environment here and nowhere else.

Names and defaults are those of the specification ("Limits"); `deploy/README.md` explains each one.
A secret ``NAME`` may also be given as ``NAME_FILE``, the path of a file that holds it. All faults
of the environment are reported at once when a process starts; values that are well-formed but
unwise are system checks (``controlplane.checks``).

Durations carry their unit in the name. ``*_MS`` values are milliseconds.
"""

from __future__ import annotations

import secrets as stdlib_secrets
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dj_database_url
from environs import validate

from controlplane.logging import configure_logging
from controlplane.security.app_key import app_private_key, rsa_private_key
from controlplane.settings_environment import (
    NODE_LABEL,
    TOLERATION,
    absolute_path,
    absolute_path_or_none,
    account,
    allowed_networks,
    amount,
    bare_word,
    base_url,
    basic_user,
    broker_url,
    check_cors_origins,
    credentials_key,
    database_url,
    decimal,
    engine_address,
    env,
    has_fault,
    host,
    hosts_answered,
    image,
    image_or_none,
    is_loopback,
    name_servers,
    network,
    networks,
    not_above,
    note_fault,
    origins,
    own_hosts,
    owner_header,
    pinned_image_or_none,
    port,
    port_or_none,
    positive,
    preview_authority,
    preview_domain,
    queue,
    reachable,
    registry_name,
    registry_or_none,
    secret,
    shown_text,
    signing_secret,
    tell_all_faults,
    together,
    words,
    zero_or_more,
)
from controlplane.settings_fixed import *  # noqa: F403 (Django reads all settings of one module)
from controlplane.settings_fixed import SPECTACULAR_SETTINGS

BASE_DIR = Path(__file__).resolve().parent.parent
SVC_RELEASE = "0.4.0"

# ---------------------------------------------------------------- identity and web
SVC_INSTANCE_ID: str = env.str(
    "SVC_INSTANCE_ID", "svc", validate=validate.Regexp(r"^[a-z0-9][a-z0-9-]{0,62}\Z")
)
SVC_VERSION: str = env.str("SVC_VERSION", "") or SVC_RELEASE
SVC_DATA_DIR = Path(env.str("SVC_DATA_DIR", str(BASE_DIR / ".data")))
# Nothing is no address: whoever leaves it empty has not asked to be reached from everywhere.
SVC_BIND_HOST: str = env.str("SVC_BIND_HOST", "", validate=host) or "127.0.0.1"
# What the outside sees of it, where the process itself is in a container.
SVC_PUBLISHED_HOST: str = env.str("SVC_PUBLISHED_HOST", "", validate=host) or SVC_BIND_HOST
SVC_API_PORT = port("SVC_API_PORT", 4000)
SVC_WEB_PORT = port_or_none("SVC_WEB_PORT", 3000)
SVC_API_WORKERS = positive("SVC_API_WORKERS", 2)
SVC_API_THREADS = positive("SVC_API_THREADS", 8)
SVC_API_MAX_CONNECTIONS = positive("SVC_API_MAX_CONNECTIONS", 1_000)
SVC_API_MAX_CONNECTIONS_PER_ADDRESS = positive("SVC_API_MAX_CONNECTIONS_PER_ADDRESS", 256)
SVC_API_HEADER_TIMEOUT_MS = positive("SVC_API_HEADER_TIMEOUT_MS", 10_000)
SVC_API_BODY_TIMEOUT_MS = positive("SVC_API_BODY_TIMEOUT_MS", 60_000)
SVC_API_WRITE_TIMEOUT_MS = positive("SVC_API_WRITE_TIMEOUT_MS", 30_000)
SVC_WEB_URL: str = env.str(
    "SVC_WEB_URL", f"http://localhost:{SVC_WEB_PORT or SVC_API_PORT}", validate=base_url
)
SVC_WEB_TRUSTED_ORIGINS: list[str] = env.list(
    "SVC_WEB_TRUSTED_ORIGINS",
    [
        f"http://{host}:{port}"
        for host in ("localhost", "127.0.0.1")
        for port in (SVC_WEB_PORT, SVC_API_PORT)
        if port
    ],
    subcast=str.strip,
    validate=origins,
)
WEB_AUTH_SECRET = secret("WEB_AUTH_SECRET", check=signing_secret)
WORKSPACE_SSH_GATEWAY_TOKEN = secret("WORKSPACE_SSH_GATEWAY_TOKEN")
SVC_CREDENTIALS_KEY = secret("SVC_CREDENTIALS_KEY", check=credentials_key)
SVC_CREDENTIALS_KEY_PREVIOUS = secret("SVC_CREDENTIALS_KEY_PREVIOUS", check=credentials_key)
SVC_ADMIN_BIND_HOST: str = env.str("SVC_ADMIN_BIND_HOST", "", validate=host) or "127.0.0.1"
# What the outside sees of it, as SVC_PUBLISHED_HOST.
SVC_ADMIN_PUBLISHED_HOST: str = (
    env.str("SVC_ADMIN_PUBLISHED_HOST", "", validate=host) or SVC_ADMIN_BIND_HOST
)
SVC_ADMIN_PORT = port_or_none("SVC_ADMIN_PORT", 0)
SVC_ADMIN_SESSION_MS = positive("SVC_ADMIN_SESSION_MS", 8 * 60 * 60 * 1000)
SVC_ADMIN_FAILED_LOGINS = positive("SVC_ADMIN_FAILED_LOGINS", 10)
SVC_ADMIN_FAILED_LOGIN_WINDOW_MS = positive("SVC_ADMIN_FAILED_LOGIN_WINDOW_MS", 900_000)
DEBUG: bool = env.bool("SVC_DEBUG", False)
SECRET_KEY = WEB_AUTH_SECRET or stdlib_secrets.token_hex(32)
ALLOWED_HOSTS: list[str] = env.list(
    "SVC_ALLOWED_HOSTS",
    own_hosts(SVC_BIND_HOST, SVC_WEB_URL),
    subcast=str.strip,
    validate=hosts_answered,
)
SVC_REQUIRE_OWNER: bool = env.bool("SVC_REQUIRE_OWNER", not is_loopback(SVC_BIND_HOST))
SVC_TRUSTED_OWNER_HEADER: str = env.str("SVC_TRUSTED_OWNER_HEADER", "", validate=owner_header)
SVC_TRUSTED_PROXIES: list[str] = env.list(
    "SVC_TRUSTED_PROXIES", [], subcast=str.strip, validate=networks
)
if SVC_TRUSTED_OWNER_HEADER and not SVC_TRUSTED_PROXIES and not has_fault("SVC_TRUSTED_PROXIES"):
    note_fault(
        "SVC_TRUSTED_PROXIES", "SVC_TRUSTED_OWNER_HEADER is only trusted from these addresses."
    )
_web = urlsplit(SVC_WEB_URL or "")
_behind_tls = _web.scheme == "https"
# Behind something that ends TLS the scheme of our own pages is another one than we see.
CSRF_TRUSTED_ORIGINS = [
    *(SVC_WEB_TRUSTED_ORIGINS or []),
    *([f"https://{_web.netloc}"] if _behind_tls else []),
]
# What the API itself is told goes before what the installation is told.
_own_origins: str | None = env.str("CORS_ALLOWED_ORIGINS", None)
_told_origins: str = env.str("SVC_CORS_ALLOWED_ORIGINS", "*")
CORS_ALLOWED_ORIGINS_SETTING = _told_origins if _own_origins is None else _own_origins

# ---------------------------------------------------------------- upstream parts
SVC_DB_PASSWORD = secret("SVC_DB_PASSWORD")
DATABASE_URL = secret(
    "DATABASE_URL",
    f"postgres://{account('svc', SVC_DB_PASSWORD)}@127.0.0.1:5432/svc",
    check=database_url,
)
DATABASE_IDLE_TRANSACTION_TIMEOUT_MS = positive("DATABASE_IDLE_TRANSACTION_TIMEOUT_MS", 15_000)
SVC_RABBITMQ_PASSWORD = secret("SVC_RABBITMQ_PASSWORD")
RABBITMQ_URL = secret(
    "RABBITMQ_URL",
    f"amqp://{account('svc', SVC_RABBITMQ_PASSWORD) if SVC_RABBITMQ_PASSWORD else 'guest:guest'}"
    "@127.0.0.1:5672/",
    check=broker_url,
)
RABBITMQ_CONNECT_TIMEOUT_MS = positive("RABBITMQ_CONNECT_TIMEOUT_MS", 3_000)
RABBITMQ_CONSUMER_TIMEOUT_MS = positive("RABBITMQ_CONSUMER_TIMEOUT_MS", 1_800_000)
REGISTRY_NAME: str = env.str("REGISTRY_NAME", "default", validate=validate.Length(min=1))
SVC_REGISTRY_PORT = port("SVC_REGISTRY_PORT", 5000)
REGISTRY_BASE_URL: str = env.str(
    "REGISTRY_BASE_URL", f"http://127.0.0.1:{SVC_REGISTRY_PORT}", validate=base_url
)
REGISTRY_PUSH_REGISTRY: str = env.str(
    "REGISTRY_PUSH_REGISTRY", f"127.0.0.1:{SVC_REGISTRY_PORT}", validate=registry_name
)
REGISTRY_USERNAME: str = env.str("REGISTRY_USERNAME", "", validate=basic_user) or ""
REGISTRY_PASSWORD = secret("REGISTRY_PASSWORD")
together("REGISTRY_USERNAME", REGISTRY_USERNAME, "REGISTRY_PASSWORD", REGISTRY_PASSWORD)
REGISTRY_CONNECT_TIMEOUT_MS = positive("REGISTRY_CONNECT_TIMEOUT_MS", 3_000)
REGISTRY_READ_TIMEOUT_MS = positive("REGISTRY_READ_TIMEOUT_MS", 15_000)
REGISTRY_TOTAL_TIMEOUT_MS = positive("REGISTRY_TOTAL_TIMEOUT_MS", 30_000)
SCM_APP_ID: str = env.str("SCM_APP_ID", "", validate=decimal) or ""
SCM_APP_PRIVATE_KEY = app_private_key(
    secret("SCM_APP_PRIVATE_KEY", check=rsa_private_key), env.str("SCM_APP_PRIVATE_KEY_PATH", "")
)
# Most processes have the names of the app and none of its secrets: that is a warning, scm.W004.
if SCM_APP_PRIVATE_KEY:
    together("SCM_APP_ID", SCM_APP_ID, "SCM_APP_PRIVATE_KEY", SCM_APP_PRIVATE_KEY)
SCM_APP_WEBHOOK_SECRET = secret("SCM_APP_WEBHOOK_SECRET")
SCM_APP_SLUG: str = env.str("SCM_APP_SLUG", "", validate=bare_word) or ""
SCM_APP_CLIENT_ID: str = env.str("SCM_APP_CLIENT_ID", "", validate=bare_word) or ""
SCM_APP_CLIENT_SECRET = secret("SCM_APP_CLIENT_SECRET")
if SCM_APP_CLIENT_SECRET:
    together("SCM_APP_CLIENT_ID", SCM_APP_CLIENT_ID, "SCM_APP_CLIENT_SECRET", SCM_APP_CLIENT_SECRET)
SCM_API_BASE_URL: str = env.str("SCM_API_BASE_URL", "https://api.github.com", validate=base_url)
SCM_API_CONNECT_TIMEOUT_MS = positive("SCM_API_CONNECT_TIMEOUT_MS", 3_000)
SCM_API_READ_TIMEOUT_MS = positive("SCM_API_READ_TIMEOUT_MS", 15_000)
SCM_API_TOTAL_TIMEOUT_MS = positive("SCM_API_TOTAL_TIMEOUT_MS", 60_000)
SCM_WEBHOOK_MAX_BODY_BYTES = positive("SCM_WEBHOOK_MAX_BODY_BYTES", 25 * 1024**2)
SCM_DELIVERY_UPKEEP_INTERVAL_MS = positive("SCM_DELIVERY_UPKEEP_INTERVAL_MS", 15_000)
SCM_DELIVERY_KEEP_MS = positive("SCM_DELIVERY_KEEP_MS", 2_592_000_000)
CONTAINER_SOCKET_PATH: str = env.str(
    "CONTAINER_SOCKET_PATH", "/var/run/docker.sock", validate=absolute_path
)
DOCKER_HOST: str = (
    env.str("DOCKER_HOST", "", validate=engine_address) or f"unix://{CONTAINER_SOCKET_PATH}"
)
SVC_ENGINE: str = env.str(
    "SVC_ENGINE", "local", validate=validate.Regexp(r"^[a-z0-9][a-z0-9-]{0,62}\Z")
)
DOCKER_CLI: str = env.str("DOCKER_CLI", "docker", validate=validate.Length(min=1))
DOCKER_TIMEOUT_MS = positive("DOCKER_TIMEOUT_MS", 60_000)
DEFAULT_RUNTIME_ADAPTER: str = env.str(
    "DEFAULT_RUNTIME_ADAPTER", "docker", validate=validate.OneOf(["docker", "kubernetes"])
)
KUBERNETES_KUBECONFIG: str = env.str("KUBERNETES_KUBECONFIG", "")
KUBERNETES_NAMESPACE: str = env.str(
    "KUBERNETES_NAMESPACE",
    "svc-workspaces",
    validate=validate.Regexp(r"^[a-z0-9][a-z0-9-]{0,62}\Z"),
)
KUBERNETES_PULL_REGISTRY: str = (
    env.str("KUBERNETES_PULL_REGISTRY", "", validate=registry_or_none) or ""
)
KUBERNETES_PULL_SECRET: str = env.str("KUBERNETES_PULL_SECRET", "")
KUBERNETES_PROBE_IMAGE: str = (
    env.str("KUBERNETES_PROBE_IMAGE", "", validate=pinned_image_or_none) or ""
)
KUBERNETES_STORAGE_CLASS: str = env.str("KUBERNETES_STORAGE_CLASS", "")
KUBERNETES_VOLUME_SIZE: str = env.str("KUBERNETES_VOLUME_SIZE", "10Gi", validate=amount)
KUBERNETES_EPHEMERAL_STORAGE: str = env.str("KUBERNETES_EPHEMERAL_STORAGE", "10Gi", validate=amount)
KUBERNETES_NODE_SELECTOR = words("KUBERNETES_NODE_SELECTOR", [], NODE_LABEL)
KUBERNETES_TOLERATIONS = words("KUBERNETES_TOLERATIONS", [], TOLERATION)
KUBERNETES_TIMEOUT_MS = positive("KUBERNETES_TIMEOUT_MS", 30_000)
KUBERNETES_START_TIMEOUT_MS = positive("KUBERNETES_START_TIMEOUT_MS", 60_000)

# ---------------------------------------------------------------- the queue and the build worker
WORKSPACE_BUILD_QUEUE = queue("WORKSPACE_BUILD_QUEUE", "sandbox-image-builds")
WORKSPACE_BUILD_QUEUE_PREFETCH = positive("WORKSPACE_BUILD_QUEUE_PREFETCH", 1)
WORKSPACE_START_CONCURRENCY = positive("WORKSPACE_START_CONCURRENCY", 8)
WORKSPACE_WARM_POOL_SIZE = zero_or_more("WORKSPACE_WARM_POOL_SIZE", 0)
WORKSPACE_WARM_POOL_MEMORY_MB = zero_or_more("WORKSPACE_WARM_POOL_MEMORY_MB", 0)
WORKSPACE_BUILD_JOB_LEASE_DURATION_MS = positive("WORKSPACE_BUILD_JOB_LEASE_DURATION_MS", 900_000)
WORKSPACE_BUILD_JOB_MAX_ATTEMPTS = positive("WORKSPACE_BUILD_JOB_MAX_ATTEMPTS", 3)
WORKSPACE_BUILD_JOB_QUEUED_OVERDUE_MS = positive("WORKSPACE_BUILD_JOB_QUEUED_OVERDUE_MS", 10_000)
WORKER_HEARTBEAT_INTERVAL_MS = positive("WORKER_HEARTBEAT_INTERVAL_MS", 5_000)
WORKER_HEARTBEAT_STALE_MS = positive("WORKER_HEARTBEAT_STALE_MS", 20_000)
WORKER_ALIVE_FILE: str = env.str("WORKER_ALIVE_FILE", "", validate=absolute_path_or_none)
WORKER_SWEEP_INTERVAL_MS = positive("WORKER_SWEEP_INTERVAL_MS", 3_000)
WORKER_RECONCILE_INTERVAL_MS = positive("WORKER_RECONCILE_INTERVAL_MS", 10_000)
WORKER_RECONCILE_GRACE_MS = positive("WORKER_RECONCILE_GRACE_MS", 60_000)
WORKER_CREDENTIALS_INTERVAL_MS = positive("WORKER_CREDENTIALS_INTERVAL_MS", 30_000)
WORKER_IMAGES_INTERVAL_MS = positive("WORKER_IMAGES_INTERVAL_MS", 300_000)
WORKSPACE_KEEP_ENDED_MS = positive("WORKSPACE_KEEP_ENDED_MS", 86_400_000)
WORKSPACE_IMAGE_KEEP_MS = positive("WORKSPACE_IMAGE_KEEP_MS", 604_800_000)

# ---------------------------------------------------------------- runs and their records
WORKSPACE_RUN_QUEUE = queue("WORKSPACE_RUN_QUEUE", "workspace-run-executions")
if WORKSPACE_RUN_QUEUE == WORKSPACE_BUILD_QUEUE:
    note_fault("WORKSPACE_RUN_QUEUE", "Must differ from WORKSPACE_BUILD_QUEUE.")
RUN_WORKER_CAPACITY = positive("RUN_WORKER_CAPACITY", 64)
RUN_WORKER_SESSIONS = positive("RUN_WORKER_SESSIONS", 256)
RUN_WORKER_WORKSPACES = positive("RUN_WORKER_WORKSPACES", 1024)
RUN_LEASE_DURATION_MS = positive("RUN_LEASE_DURATION_MS", 60_000)
RUN_QUEUED_OVERDUE_MS = positive("RUN_QUEUED_OVERDUE_MS", 10_000)
RUN_TIME_LIMIT_MS = positive("RUN_TIME_LIMIT_MS", 3_600_000)
RUN_MAX_TIME_LIMIT_MS = positive("RUN_MAX_TIME_LIMIT_MS", 86_400_000)
not_above("RUN_TIME_LIMIT_MS", RUN_TIME_LIMIT_MS, "RUN_MAX_TIME_LIMIT_MS", RUN_MAX_TIME_LIMIT_MS)
RUN_STOP_GRACE_MS = positive("RUN_STOP_GRACE_MS", 10_000)
RUN_SPOOL_BYTES = positive("RUN_SPOOL_BYTES", 256 * 1024**2)
RUN_SPOOL_SEGMENT_BYTES = positive("RUN_SPOOL_SEGMENT_BYTES", 8 * 1024**2)
RUN_SPOOL_POLICY: str = env.str(
    "RUN_SPOOL_POLICY", "block", validate=validate.OneOf(["block", "drop"])
)
RUN_INPUT_RECORDING: str = env.str(
    "RUN_INPUT_RECORDING", "masked", validate=validate.OneOf(["off", "masked", "full"])
)
RUN_CHANGES_PATCH_BYTES = positive("RUN_CHANGES_PATCH_BYTES", 1024**2)
RUN_CHANGES_MAX_FILES = positive("RUN_CHANGES_MAX_FILES", 20_000)
SVC_RECORD_SIGNING_KEY = secret("SVC_RECORD_SIGNING_KEY", check=credentials_key)

# ---------------------------------------------------------------- the SSH gateway
SVC_SSH_HOST: str = env.str("SVC_SSH_HOST", "localhost", validate=host) or "localhost"
SVC_SSH_PORT = port("SVC_SSH_PORT", 2222)
SSH_GATEWAY_WORKSPACE_USERNAME_PREFIX: str = env.str(
    "SSH_GATEWAY_WORKSPACE_USERNAME_PREFIX", "ws", validate=validate.Regexp(r"^[A-Za-z0-9_.]+\Z")
)
SSH_GATEWAY_BANNER: str = env.str(
    "SSH_GATEWAY_BANNER", "Welcome. This session is recorded.", validate=shown_text
)
SSH_GATEWAY_API_BASE_URL: str = env.str(
    "SSH_GATEWAY_API_BASE_URL",
    f"http://{reachable(SVC_BIND_HOST)}:{SVC_API_PORT}",
    validate=base_url,
)
SSH_GATEWAY_HOST_KEY_PATH = Path(
    env.str("SSH_GATEWAY_HOST_KEY_PATH", str(SVC_DATA_DIR / "ssh" / "host_ed25519_key"))
)
SSH_GATEWAY_RECORD_POLICY: str = env.str(
    "SSH_GATEWAY_RECORD_POLICY", "require", validate=validate.OneOf(["require", "off"])
)
SSH_GATEWAY_ACCEPT_ENV = words(
    "SSH_GATEWAY_ACCEPT_ENV",
    [
        *("LANG", "LC_*", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "NO_COLOR"),
        "GIT_*",
    ],
    r"[A-Za-z_*?][A-Za-z0-9_*?]*",
)
SSH_GATEWAY_FORWARD_HOSTS = words(
    "SSH_GATEWAY_FORWARD_HOSTS", ["localhost", "127.0.0.1", "::1"], r"\*|[A-Za-z0-9_.:-]+"
)
SSH_GATEWAY_LOGIN_GRACE_MS = positive("SSH_GATEWAY_LOGIN_GRACE_MS", 30_000)
SSH_GATEWAY_IDLE_TIMEOUT_MS = zero_or_more("SSH_GATEWAY_IDLE_TIMEOUT_MS", 43_200_000)
SSH_GATEWAY_KEEPALIVE_MS = positive("SSH_GATEWAY_KEEPALIVE_MS", 15_000)
SSH_GATEWAY_KEEPALIVE_COUNT = positive("SSH_GATEWAY_KEEPALIVE_COUNT", 4)
SSH_GATEWAY_DISCONNECT_GRACE_MS = zero_or_more("SSH_GATEWAY_DISCONNECT_GRACE_MS", 10_000)
SSH_GATEWAY_MAX_CONNECTIONS = positive("SSH_GATEWAY_MAX_CONNECTIONS", 1_000)
SSH_GATEWAY_MAX_CONNECTIONS_PER_PRINCIPAL = positive(
    "SSH_GATEWAY_MAX_CONNECTIONS_PER_PRINCIPAL", 256
)
SSH_GATEWAY_MAX_CHANNELS = positive("SSH_GATEWAY_MAX_CHANNELS", 64)
SSH_GATEWAY_MAX_LOGINS = positive("SSH_GATEWAY_MAX_LOGINS", 128)
SSH_GATEWAY_MAX_KEYS = positive("SSH_GATEWAY_MAX_KEYS", 6)
SSH_GATEWAY_FAILED_LOGINS = positive("SSH_GATEWAY_FAILED_LOGINS", 10)
SSH_GATEWAY_FAILED_LOGIN_WINDOW_MS = positive("SSH_GATEWAY_FAILED_LOGIN_WINDOW_MS", 60_000)
SSH_GATEWAY_DRAIN_MS = zero_or_more("SSH_GATEWAY_DRAIN_MS", 5_000)

# ---------------------------------------------------------------- the preview gateway
SVC_PREVIEW_DOMAIN: str = env.str("SVC_PREVIEW_DOMAIN", "localhost", validate=preview_domain) or ""
SVC_PREVIEW_DOMAIN = SVC_PREVIEW_DOMAIN.lower()
SVC_PREVIEW_SCHEME: str = env.str(
    "SVC_PREVIEW_SCHEME", "http", validate=validate.OneOf(["http", "https"])
)
SVC_PREVIEW_PORT = port("SVC_PREVIEW_PORT", 4080)
SVC_PREVIEW_AUTHORITY = preview_authority(SVC_PREVIEW_DOMAIN, SVC_PREVIEW_SCHEME, SVC_PREVIEW_PORT)
SVC_PREVIEW_LINK_MS = positive("SVC_PREVIEW_LINK_MS", 600_000)
SVC_PREVIEW_COOKIE_MS = positive("SVC_PREVIEW_COOKIE_MS", 28_800_000)
SVC_PREVIEW_MAX_CONNECTIONS = positive("SVC_PREVIEW_MAX_CONNECTIONS", 128)
SVC_PREVIEW_MAX_UNADMITTED = positive("SVC_PREVIEW_MAX_UNADMITTED", 1024)
SVC_PREVIEW_MAX_UNADMITTED_PER_ADDRESS = positive("SVC_PREVIEW_MAX_UNADMITTED_PER_ADDRESS", 64)

# ---------------------------------------------------------------- the E2B facade
SVC_E2B_PORT = port_or_none("SVC_E2B_PORT", 0)
SVC_E2B_OWNER: str = env.str("SVC_E2B_OWNER", "usr_local", validate=validate.Length(1, 200))
SVC_E2B_TEMPLATES_DIR: str = env.str("SVC_E2B_TEMPLATES_DIR", "")

# ---------------------------------------------------------------- limits of one build and launch
WORKSPACE_SOURCE_TIMEOUT_MS = positive("WORKSPACE_SOURCE_TIMEOUT_MS", 300_000)
WORKSPACE_SOURCE_MAX_BYTES = positive("WORKSPACE_SOURCE_MAX_BYTES", 2 * 1024**3)
WORKSPACE_BUILD_TIMEOUT_MS = positive("WORKSPACE_BUILD_TIMEOUT_MS", 1_800_000)
WORKSPACE_BUILD_MEMORY_MB = positive("WORKSPACE_BUILD_MEMORY_MB", 4_096)
WORKSPACE_BUILD_CPUS: float = env.float(
    "WORKSPACE_BUILD_CPUS", 2.0, validate=validate.Range(min=0.01)
)
WORKSPACE_BUILD_PIDS = positive("WORKSPACE_BUILD_PIDS", 4_096)
WORKSPACE_PUSH_TIMEOUT_MS = positive("WORKSPACE_PUSH_TIMEOUT_MS", 900_000)
WORKSPACE_LAUNCH_TIMEOUT_MS = positive("WORKSPACE_LAUNCH_TIMEOUT_MS", 3_600_000)
WORKSPACE_CREDENTIALS_TIMEOUT_MS = positive("WORKSPACE_CREDENTIALS_TIMEOUT_MS", 300_000)
WORKSPACE_STEP_TIMEOUT_MS = positive("WORKSPACE_STEP_TIMEOUT_MS", 1_800_000)
WORKSPACE_STOP_GRACE_MS = positive("WORKSPACE_STOP_GRACE_MS", 10_000)
WORKSPACE_MEMORY_MB = positive("WORKSPACE_MEMORY_MB", 4_096)
WORKSPACE_CPUS: float = env.float("WORKSPACE_CPUS", 2.0, validate=validate.Range(min=0.01))
WORKSPACE_PIDS = positive("WORKSPACE_PIDS", 2_048)
SVC_WORKSPACE_MAX_DISK_BYTES = zero_or_more("SVC_WORKSPACE_MAX_DISK_BYTES", 50 * 1024**3)
WORKSPACE_MAX_MEMORY_MB = positive("WORKSPACE_MAX_MEMORY_MB", 16_384)
WORKSPACE_MAX_CPUS: float = env.float("WORKSPACE_MAX_CPUS", 8.0, validate=validate.Range(min=0.01))
WORKSPACE_MAX_PIDS = positive("WORKSPACE_MAX_PIDS", 16_384)
not_above(
    "WORKSPACE_MEMORY_MB", WORKSPACE_MEMORY_MB, "WORKSPACE_MAX_MEMORY_MB", WORKSPACE_MAX_MEMORY_MB
)
not_above("WORKSPACE_CPUS", WORKSPACE_CPUS, "WORKSPACE_MAX_CPUS", WORKSPACE_MAX_CPUS)
not_above("WORKSPACE_PIDS", WORKSPACE_PIDS, "WORKSPACE_MAX_PIDS", WORKSPACE_MAX_PIDS)
SVC_WORKSPACE_NETWORK_POOL: str = env.str(
    "SVC_WORKSPACE_NETWORK_POOL", "10.213.0.0/16", validate=network
)
SVC_NETWORK_GUARD: str = env.str(
    "SVC_NETWORK_GUARD", "on", validate=validate.OneOf(["on", "external", "off"])
)
SVC_NETWORK_GUARD_IMAGE: str = env.str("SVC_NETWORK_GUARD_IMAGE", "", validate=image_or_none) or ""
SVC_WORKSPACE_ALLOWED_NETWORKS: list[str] = env.list(
    "SVC_WORKSPACE_ALLOWED_NETWORKS", [], subcast=str.strip, validate=allowed_networks
)
SVC_EGRESS_PORT: int = env.int("SVC_EGRESS_PORT", 4053, validate=validate.Range(min=0, max=65535))
SVC_EGRESS_PRESETS: str = env.str("SVC_EGRESS_PRESETS", "")
SVC_EGRESS_RESOLVERS: list[str] = env.list(
    "SVC_EGRESS_RESOLVERS", [], subcast=str.strip, validate=name_servers
)
SVC_SOURCE_ALLOW_FILE: bool = env.bool("SVC_SOURCE_ALLOW_FILE", False)
SVC_SOURCE_ALLOW_PRIVATE: bool = env.bool("SVC_SOURCE_ALLOW_PRIVATE", False)
SVC_EXTRA_CA_FILE: str = env.str("SVC_EXTRA_CA_FILE", "")
SVC_BASE_IMAGES = {
    "debian": image("SVC_BASE_IMAGE_DEBIAN", "debian:bookworm-slim"),
    "ubuntu": image("SVC_BASE_IMAGE_UBUNTU", "ubuntu:24.04"),
    "fedora": image("SVC_BASE_IMAGE_FEDORA", "fedora:43"),
    "arch": image("SVC_BASE_IMAGE_ARCH", "archlinux:base"),
    "alpine": image("SVC_BASE_IMAGE_ALPINE", "alpine:3.22"),
}
SVC_DEFAULT_OS_FAMILY: str = env.str(
    "SVC_DEFAULT_OS_FAMILY", "debian", validate=validate.OneOf(sorted(SVC_BASE_IMAGES))
)
PACKAGE_SYNC_FAMILIES = words(
    "PACKAGE_SYNC_FAMILIES", [SVC_DEFAULT_OS_FAMILY], "|".join(sorted(SVC_BASE_IMAGES))
)
PACKAGE_SYNC_INTERVAL_MS = positive("PACKAGE_SYNC_INTERVAL_MS", 30_000)
PACKAGE_SYNC_TIMEOUT_MS = positive("PACKAGE_SYNC_TIMEOUT_MS", 600_000)
PACKAGE_SYNC_BACKOFF_MS = positive("PACKAGE_SYNC_BACKOFF_MS", 60_000)
PACKAGE_INDEX_TTL_MS = positive("PACKAGE_INDEX_TTL_MS", 86_400_000)

# ---------------------------------------------------------------- limits of one owner
OWNER_MAX_WORKSPACES = zero_or_more("OWNER_MAX_WORKSPACES", 1_000)
OWNER_MAX_RUNNING_BUILDS = zero_or_more("OWNER_MAX_RUNNING_BUILDS", 100)
OWNER_MAX_RECORD_BYTES = zero_or_more("OWNER_MAX_RECORD_BYTES", 0)

# ---------------------------------------------------------------- limits of one request
SVC_MAX_BODY_BYTES = positive("SVC_MAX_BODY_BYTES", 1024 * 1024)
SVC_MAX_BODY_DEPTH = positive("SVC_MAX_BODY_DEPTH", 64)
SVC_MAX_BODY_VALUES = positive("SVC_MAX_BODY_VALUES", 10_000)
SVC_MAX_FILE_BYTES = positive("SVC_MAX_FILE_BYTES", 5 * 1024**3)
SVC_UPLOAD_DIR: str = env.str("SVC_UPLOAD_DIR", "/var/tmp", validate=absolute_path)  # noqa: S108

LOG_LEVEL: str = env.str(
    "SVC_LOG_LEVEL", "INFO", validate=validate.OneOf(["DEBUG", "INFO", "WARNING", "ERROR"])
)
LOG_FORMAT: str = env.str(
    "SVC_LOG_FORMAT", "auto", validate=validate.OneOf(["auto", "json", "console"])
)

check_cors_origins("CORS_ALLOWED_ORIGINS", _own_origins or "")
check_cors_origins("SVC_CORS_ALLOWED_ORIGINS", _told_origins)
tell_all_faults()

# ---------------------------------------------------------------- Django
DATABASES: dict[str, Any] = {
    "default": {
        **dj_database_url.parse(DATABASE_URL, conn_max_age=60, conn_health_checks=True),
        "ATOMIC_REQUESTS": False,
    }
}
_OPTIONS: dict[str, Any] = DATABASES["default"].setdefault("OPTIONS", {})
_OPTIONS.setdefault("connect_timeout", 5)
# A process that stands still, or whose machine is gone, must not keep its locks: the server ends
# a transaction that waits for its client, and a connection whose other end is silent.
_OPTIONS.setdefault(
    "options",
    f"-c idle_in_transaction_session_timeout={DATABASE_IDLE_TRANSACTION_TIMEOUT_MS}"
    " -c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3",
)
DATA_UPLOAD_MAX_MEMORY_SIZE = SVC_MAX_BODY_BYTES
SESSION_COOKIE_AGE = max(1, SVC_ADMIN_SESSION_MS // 1000)
# Something in front of us ends TLS: a browser shows these cookies to nothing that has none.
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _behind_tls

# ---------------------------------------------------------------- CORS
CORS_ALLOWED_ORIGINS = [
    origin.strip()
    for origin in CORS_ALLOWED_ORIGINS_SETTING.split(",")
    if origin.strip() and origin.strip() != "*"
]
# "*" answers with the origin that asked, as clients of this API expect.
CORS_ALLOWED_ORIGIN_REGEXES = [r".*"] if CORS_ALLOWED_ORIGINS_SETTING.strip() == "*" else []
# ---------------------------------------------------------------- the API
SPECTACULAR_SETTINGS["VERSION"] = SVC_RELEASE

configure_logging(level=LOG_LEVEL, log_format=LOG_FORMAT)
