"""``manage.py blueprintreference``: the page of the blueprint, made from its models."""

from __future__ import annotations

from controlplane.reference.pages import ReferenceCommand
from workspaces.blueprint_reference import blueprint_page


class Command(ReferenceCommand):
    """Writes or checks ``docs/users/blueprint.md``."""

    help = "Write docs/users/blueprint.md from the blueprint's models, or check it."
    page = "docs/users/blueprint.md"

    def text(self) -> str:
        """Return the page as it has to be."""
        return blueprint_page()
