"""The blueprint: a client's description of a workspace, parsed once at the edge.

``Blueprint.parse`` turns any JSON value into typed, frozen values with all defaults filled in, or
raises ``ValidationFailed`` naming every fault with its JSON pointer. Behind it nobody checks
again: what a blueprint holds is bounded, trimmed and free of control characters.

- :mod:`.grammar` what kinds of text there are
- :mod:`.contents`  what is in the workspace; :mod:`.running` how it starts and runs;
  :mod:`.egress` what it reaches;
  :mod:`.blueprint` both together
- :mod:`.ignored`  what only other planners know
- :mod:`.faults`  what can be wrong, and how it is said
- :mod:`.schema`  the JSON Schema of the API's documentation
"""

from .blueprint import Blueprint, Credentials
from .contents import (
    WORKSPACE_SOURCE_ID,
    CustomHarness,
    Customization,
    InputSource,
    PackageRequest,
    ProvidedHarness,
    Source,
    Sources,
    Tooling,
)
from .egress import Egress, EgressRule
from .ignored import MEMBER_IGNORED, warnings_of
from .running import (
    CommandForeground,
    HarnessForeground,
    Lifecycle,
    Resources,
    Runtime,
    Startup,
    Step,
)
from .schema import blueprint_schema, egress_schema

__all__ = [
    "MEMBER_IGNORED",
    "WORKSPACE_SOURCE_ID",
    "Blueprint",
    "CommandForeground",
    "Credentials",
    "CustomHarness",
    "Customization",
    "Egress",
    "EgressRule",
    "HarnessForeground",
    "InputSource",
    "Lifecycle",
    "PackageRequest",
    "ProvidedHarness",
    "Resources",
    "Runtime",
    "Source",
    "Sources",
    "Startup",
    "Step",
    "Tooling",
    "blueprint_schema",
    "egress_schema",
    "warnings_of",
]
