"""The SSH gateway, the preview gateway and the E2B facade."""

from __future__ import annotations

from pathlib import Path

from environs import validate

from controlplane.settings.installation import SVC_API_PORT, SVC_BIND_HOST, SVC_DATA_DIR
from controlplane.settings_environment import (
    base_url,
    env,
    host,
    port,
    port_or_none,
    positive,
    preview_authority,
    preview_domain,
    reachable,
    shown_text,
    words,
    zero_or_more,
)

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
