"""What this installation is, who may call it and how much one request may bring."""

from __future__ import annotations

import secrets as stdlib_secrets
from pathlib import Path
from urllib.parse import urlsplit

from environs import validate

from controlplane.settings_environment import (
    absolute_path,
    base_url,
    check_cors_origins,
    credentials_key,
    env,
    has_fault,
    host,
    hosts_answered,
    is_loopback,
    networks,
    note_fault,
    origins,
    own_hosts,
    owner_header,
    port,
    port_or_none,
    positive,
    secret,
    signing_secret,
)
from controlplane.settings_fixed import BASE_DIR, SVC_RELEASE

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
# A browser then shows these cookies to nothing that has no TLS.
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _behind_tls
# What the API itself is told goes before what the installation is told.
_own_origins: str | None = env.str("CORS_ALLOWED_ORIGINS", None)
_told_origins: str = env.str("SVC_CORS_ALLOWED_ORIGINS", "*")
CORS_ALLOWED_ORIGINS_SETTING = _told_origins if _own_origins is None else _own_origins
check_cors_origins("CORS_ALLOWED_ORIGINS", _own_origins or "")
check_cors_origins("SVC_CORS_ALLOWED_ORIGINS", _told_origins)
CORS_ALLOWED_ORIGINS = [
    origin.strip()
    for origin in CORS_ALLOWED_ORIGINS_SETTING.split(",")
    if origin.strip() and origin.strip() != "*"
]
# "*" answers with the origin that asked, as clients of this API expect.
CORS_ALLOWED_ORIGIN_REGEXES = [r".*"] if CORS_ALLOWED_ORIGINS_SETTING.strip() == "*" else []

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
