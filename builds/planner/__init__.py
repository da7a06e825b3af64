"""The planner: from a blueprint to everything that decides its image, without any I/O.

``plan(blueprint, os_family, catalogue)`` returns an :class:`ImagePlan` or raises
:class:`UnsupportedError` with one of the specification's reasons. Text from a client never becomes
a line of a Dockerfile: the Dockerfile is constant for a family, and what a client chose travels
in files of the build context that fixed scripts read.

- :mod:`.planner`    the decisions and the Dockerfile, and :mod:`.plan` their result
- :mod:`.catalogue`  what the operator of this installation offers

The fixed scripts that the Dockerfile runs stand in the folder ``install``; harnesses are in
:mod:`workspaces.harnesses`, distributions in :mod:`workspaces.families`.
"""

from workspaces.harnesses import HARNESSES, Harness

from .catalogue import Catalogue
from .plan import BuildStep, ImagePlan, PlanFile, PlannedSource, StepFiles, UnsupportedError
from .planner import DOTFILES_DESTINATION, plan, reach_of

__all__ = [
    "DOTFILES_DESTINATION",
    "HARNESSES",
    "BuildStep",
    "Catalogue",
    "Harness",
    "ImagePlan",
    "PlanFile",
    "PlannedSource",
    "StepFiles",
    "UnsupportedError",
    "plan",
    "reach_of",
]
