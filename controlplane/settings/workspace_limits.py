"""What a build, a workspace and an owner may take, and where a workspace's parts come from."""

from __future__ import annotations

from environs import validate

from controlplane.settings_environment import (
    allowed_networks,
    env,
    image,
    image_or_none,
    name_servers,
    network,
    not_above,
    positive,
    words,
    zero_or_more,
)

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
