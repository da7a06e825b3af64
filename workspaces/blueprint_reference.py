"""``docs/users/blueprint.md``: every member of a blueprint, and what it may be made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from controlplane.reference.schema_tables import Schema, members_table, without_null
from workspaces.blueprint import blueprint_schema
from workspaces.blueprint.grammar import (
    ENV_VALUE_BYTES,
    LINE_BYTES,
    RESERVED_ENV_NAMES,
    RESERVED_ENV_PREFIX,
    SCRIPT_BYTES,
    SYSTEM_DIRECTORIES,
)
from workspaces.blueprint.running import MAX_ENV_BYTES, MAX_ENV_ENTRIES, MAX_STEPS
from workspaces.families import FAMILIES
from workspaces.harnesses import HARNESSES

INTRODUCTION: Final = """\
# The blueprint

Made from the code by `make schema`; do not edit it. A blueprint is the member `spec` of a request
for a sandbox or a workspace: a JSON object that says what is in the workspace and what runs when it
starts. Only `harness` is required. [`examples/`](../../examples) has whole ones.

It is strict. Members that are not known are refused, with a suggestion; nothing is converted (`"2"`
is no number); all faults are reported at once, each with its JSON pointer and a
[code](errors.md#faults). A member that is null counts as absent; only variables of `env` cannot be
null. What was accepted is stored with every default filled in. Switches of
other planners (`customization.enable…`) are ignored, and the answer lists them in `warnings`.
"""


def blueprint_page() -> str:
    """Return the page."""
    lines = [INTRODUCTION]
    for place, schema in _objects("", blueprint_schema()):
        title = f"`{place}`" if place else "All members"
        lines += [f"## {title}", "", str(schema["description"]), "", *members_table(schema), ""]
    lines += [*_texts(), *_harnesses(), *_families()]
    return "\n".join(lines).rstrip() + "\n"


def _objects(place: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield every object of a blueprint with its place; alternatives have the one that decides."""
    yield place, schema
    for name, member in schema["properties"].items():
        here = f"{place}.{name}" if place else name
        found = without_null(member)
        if found.get("type") == "array":
            here, found = f"{here}[]", found.get("items", {})
        for option in found.get("oneOf", [found]):
            if "properties" in option:
                decides = _decider(option) if "oneOf" in found else ""
                yield from _objects(here + decides, option)


def _decider(option: Schema) -> str:
    for name in ("id", "kind"):
        member: Any = option["properties"].get(name, {})
        allowed = member.get("enum", [member["const"]] if "const" in member else [])
        if allowed:
            return f" ({name}: {', '.join(allowed)})"
    return ""


def _texts() -> list[str]:
    folders = ", ".join(f"`{folder}`" for folder in SYSTEM_DIRECTORIES)
    names = ", ".join(f"`{name}`" for name in sorted(RESERVED_ENV_NAMES))
    rules = {
        "a line": f"at most {LINE_BYTES} bytes of UTF-8, without control and invisible characters; "
        "white space around it is removed",
        "a script": f"at most {SCRIPT_BYTES} bytes; may have line feeds and tabs, and no other "
        "control character",
        "environment": f"at most {MAX_ENV_ENTRIES} variables and {MAX_ENV_BYTES} bytes, each value "
        f"at most {ENV_VALUE_BYTES} bytes, kept byte for byte; {names} and names that begin with "
        f"`{RESERVED_ENV_PREFIX}` are reserved",
        "a path": "absolute and normalized, of letters, digits and `._@+=-`",
        "a folder of the workspace": f"a path, but not {folders} or below them",
        "steps": f"`setup` and `startup.steps` of `lifecycle` have at most {MAX_STEPS} together",
    }
    lines = [f"| {kind} | {rule} |" for kind, rule in rules.items()]
    return ["## Texts", "", "| Kind | Rule |", "|---|---|", *lines, ""]


def _harnesses() -> list[str]:
    lines = [
        "## Harnesses",
        "",
        "| `harness.id` | Installed | A prompt becomes | With `rights` `read-only` | On |",
        "|---|---|---|---|---|",
    ]
    for harness in HARNESSES.values():
        installed = ", ".join(f"`{package}`" for package in harness.npm_packages) or "nothing"
        prompt = f"{harness.shown or ' '.join(harness.one_shot)} PROMPT"
        families = ", ".join(f"`{family}`" for family in harness.packages)
        shown = harness.read_only_shown
        restricted = f"`{shown} PROMPT`" if shown else "not possible"
        lines.append(f"| `{harness.id}` | {installed} | `{prompt}` | {restricted} | {families} |")
    lines.append(
        "| `custom` | what `install` installs | `command` and the prompt | not possible | all |"
    )
    return [*lines, ""]


def _families() -> list[str]:
    lines = ["## Operating systems", ""]
    lines += ["| `target.os.family` | | Packages | Versions | Shells |", "|---|---|---|---|---|"]
    for family in FAMILIES.values():
        shells = ", ".join(f"`{shell}`" for shell in family.shells)
        versions = "may be pinned" if family.pin else "only the current one"
        lines.append(
            f"| `{family.name}` | {family.title}, {family.libc} | {family.package_manager} "
            f"| {versions} | {shells} |"
        )
    lines += ["", "`auto` is the operator's default (`SVC_DEFAULT_OS_FAMILY`)."]
    lines.append("`GET /v1/packages/resolve` says which package a name stands for in each.")
    return [*lines, ""]
