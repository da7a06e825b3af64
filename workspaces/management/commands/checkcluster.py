"""``manage.py checkcluster``: try everything that workspaces need of the Kubernetes cluster."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from workspaces.models import BuildJob
from workspaces.runtimes.configured_cluster import kubernetes_adapter


class Command(BaseCommand):
    """Tells of each check what was seen, and what to do; exit code 1 when one has failed."""

    help = (
        "Check what workspaces need from the Kubernetes cluster of KUBERNETES_NAMESPACE: "
        "permissions, the pull of an image by digest, exec, limits, a volume and network policies."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take an image."""
        parser.add_argument(
            "--image",
            default="",
            help="a workspace's image by digest, as it was pushed (default: the last one built)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print a line for each check as soon as it is done."""
        from workspaces.runtimes.kubernetes.preflight import Preflight

        failed = 0
        image = options["image"] or _last_image()
        for finding in Preflight(kubernetes_adapter(), image).run():
            verdict = "ok" if finding.ok else "FAILED"
            self.stdout.write(f"{verdict:6}  {finding.name}: {finding.seen}")
            if not finding.ok:
                failed += 1
                self.stdout.write(f"        {finding.advice}")
        if failed:
            raise CommandError(f"{failed} of the checks failed.")


def _last_image() -> str:
    published = BuildJob.objects.exclude(published_digest_reference="").order_by("-id")
    return published.values_list("published_digest_reference", flat=True).first() or ""
