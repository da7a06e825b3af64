"""What the installation is connected to: database, broker, registry, source hosting and engines."""

from __future__ import annotations

from environs import validate

from controlplane.security.app_key import app_private_key, rsa_private_key
from controlplane.settings_environment import (
    NODE_LABEL,
    TOLERATION,
    absolute_path,
    account,
    amount,
    bare_word,
    base_url,
    basic_user,
    broker_url,
    database_url,
    decimal,
    engine_address,
    env,
    pinned_image_or_none,
    port,
    positive,
    registry_name,
    registry_or_none,
    secret,
    together,
    words,
)

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
