"""How a workspace starts and runs: lifecycle, runtime and target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from .egress import Egress
from .grammar import EnvName, EnvValue, Label, Script, StepDirectory, WorkspaceDirectory
from .part import Many, Part, tuple_of_array

MAX_ENV_ENTRIES: Final = 128
MAX_ENV_BYTES: Final = 32 * 1024
MAX_STEPS: Final = 50


def _refuse_credential_refs(value: object) -> object:
    if isinstance(value, list | tuple) and value:
        raise PydanticCustomError(
            "server-owned",
            "is filled in by the control plane and must be empty in a request; "
            "use credentials to choose connected accounts.",
        )
    return value


def _bounded_env(env: Mapping[str, str]) -> Mapping[str, str]:
    size = sum(len(name.encode()) + len(value.encode()) for name, value in env.items())
    if size > MAX_ENV_BYTES:
        raise PydanticCustomError(
            "too-long",
            "must not hold more than {limit} bytes of names and values.",
            {"limit": MAX_ENV_BYTES},
        )
    return env


Env = Annotated[
    Mapping[EnvName, EnvValue],
    Field(max_length=MAX_ENV_ENTRIES),
    AfterValidator(_bounded_env),
]

ShellName: TypeAlias = Literal["sh", "bash"]


class Step(Part):
    """One shell script of the workspace's start."""

    id: Label | None = Field(default=None, description="Name of the step in messages and records.")
    run: Script = Field(description="The script, at most 16 KiB.")
    shell: ShellName = Field(default="bash", description="The shell that runs the script.")
    working_directory: StepDirectory | None = Field(
        default=None,
        description="Where the script runs: absolute, or relative to `runtime.workingDirectory`. "
        "Absent: in `runtime.workingDirectory`.",
    )


class HarnessForeground(Part):
    """The workspace stays open for its harness."""

    kind: Literal["harness"] = Field(description="Keep the workspace running for the harness.")


class CommandForeground(Part):
    """The workspace lives as long as a command does."""

    kind: Literal["command"] = Field(description="Run a script of your own in the foreground.")
    run: Script = Field(description="The script, at most 16 KiB. The workspace ends with it.")
    shell: ShellName = Field(default="bash", description="The shell that runs the script.")
    working_directory: StepDirectory | None = Field(
        default=None,
        description="Where the script runs: absolute, or relative to `runtime.workingDirectory`.",
    )


Foreground = Annotated[HarnessForeground | CommandForeground, Field(discriminator="kind")]


class Startup(Part):
    """What happens at every start of the workspace."""

    steps: Many[Step] = Field(
        default=(), max_length=MAX_STEPS, description="Scripts that run at every start, in order."
    )
    foreground: Foreground = Field(
        default=HarnessForeground(kind="harness"),
        description="What the workspace runs once it has started.",
    )


class Lifecycle(Part):
    """What runs when a workspace starts."""

    setup: Many[Step] = Field(
        default=(),
        max_length=MAX_STEPS,
        description="Scripts that run once, at the first start, in order. "
        f"`setup` and `startup.steps` hold at most {MAX_STEPS} steps together.",
    )
    startup: Startup = Field(default=Startup(), description="What happens at every start.")

    @field_validator("startup")
    @classmethod
    def _steps_are_not_too_many(cls, startup: Startup, info: ValidationInfo) -> Startup:
        if len(info.data.get("setup", ())) + len(startup.steps) > MAX_STEPS:
            raise PydanticCustomError(
                "too-many",
                "and setup must not hold more than {limit} steps in total.",
                {"limit": MAX_STEPS, "at": ("steps",)},
            )
        return startup


class Network(Part):
    """What the workspace may reach."""

    outbound: bool = Field(
        default=True, description="Whether the workspace may open connections to other machines."
    )
    egress: Egress | None = Field(
        default=None,
        description="Which hosts it may reach, by name. Absent: every public address.",
    )

    @field_validator("egress")
    @classmethod
    def _has_a_network(cls, egress: Egress | None, info: ValidationInfo) -> Egress | None:
        if egress is not None and info.data.get("outbound") is False:
            raise PydanticCustomError(
                "not-allowed", "cannot be used with outbound false: nothing can be reached then."
            )
        return egress


class Resources(Part):
    """Limits of the workspace; each absent member means the operator's default."""

    memory_mb: int | None = Field(
        default=None,
        ge=64,
        le=16 * 1024 * 1024,
        description="Memory in MiB, below the operator's ceiling.",
    )
    cpus: float | None = Field(
        default=None,
        ge=0.1,
        le=4096,
        description="Number of processors, below the operator's ceiling.",
    )
    pids: int | None = Field(
        default=None,
        ge=16,
        le=4194304,
        description="Number of processes, below the operator's ceiling.",
    )


class Runtime(Part):
    """How the workspace runs."""

    env: Env = Field(
        default={},
        description="Environment variables of everything that runs in the workspace: at most "
        f"{MAX_ENV_ENTRIES}, each value at most 4 KiB, together at most 32 KiB. Values are kept as "
        "they are. `HOME`, `USER`, `LOGNAME`, `SHELL`, `PWD`, `LD_PRELOAD`, `LD_LIBRARY_PATH` and "
        "names that begin with `SVC_` are reserved.",
    )
    credential_refs: Annotated[tuple[()], BeforeValidator(tuple_of_array)] = Field(
        default=(), description="Filled in by the control plane; must be empty in a request."
    )
    workspace_root: WorkspaceDirectory = Field(
        default="/workspace",
        description="The directory that belongs to the user of the workspace. Neither a directory "
        "of the operating system nor `/`; `/root` only for the user `root`.",
    )
    working_directory: WorkspaceDirectory = Field(
        default_factory=lambda data: f"{data['workspace_root']}/repo",
        description="Where the workspace's source is checked out and where steps and sessions "
        "begin: `workspaceRoot` or below it. Absent: `repo` in `workspaceRoot`.",
    )
    persistence: Literal["ephemeral", "persistent"] = Field(
        default="ephemeral",
        description="`persistent`: the user's home and `workspaceRoot` are kept when the workspace "
        "is stopped and started again, until it is deleted, and it starts again by itself after "
        "its machine restarts. `ephemeral`: nothing is kept.",
    )
    oci_runtime: Literal["runc", "runsc"] = Field(
        default="runc", description="The OCI runtime that isolates the workspace."
    )
    network: Network = Field(default=Network(), description="What the workspace may reach.")
    resources: Resources = Field(default=Resources(), description="Limits of the workspace.")

    _no_credential_refs = field_validator("credential_refs", mode="before")(_refuse_credential_refs)

    @field_validator("working_directory")
    @classmethod
    def _is_in_the_workspace(cls, path: str, info: ValidationInfo) -> str:
        root = info.data.get("workspace_root")
        if root is not None and path != root and not path.startswith(f"{root}/"):
            raise PydanticCustomError(
                "outside-workspace",
                "must be {root} (runtime.workspaceRoot) or below it.",
                {"root": root},
            )
        return path


class TargetOs(Part):
    """The operating system of the image."""

    family: Literal["auto", "debian", "ubuntu", "fedora", "arch", "alpine"] = Field(
        default="auto", description="Distribution of the image. `auto` is the operator's default."
    )
    mode: Literal["prefer", "require"] = Field(
        default="prefer",
        description="Accepted for compatibility: a named family is always required.",
    )


class TargetRuntime(Part):
    """The engine that runs the workspace."""

    family: Literal["auto", "docker", "k8s", "k3s"] = Field(
        default="auto", description="Kind of engine. `auto` is the operator's default."
    )
    mode: Literal["prefer", "require"] = Field(
        default="prefer",
        description="Accepted for compatibility: a named family is always required.",
    )


class Target(Part):
    """What the workspace is built for."""

    os: TargetOs = Field(default=TargetOs(), description="The operating system of the image.")
    runtime: TargetRuntime = Field(
        default=TargetRuntime(), description="The engine that runs the workspace."
    )
