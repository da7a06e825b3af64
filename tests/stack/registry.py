"""What the registry holds of the chaos tests."""

from __future__ import annotations

from dataclasses import dataclass

import requests

from tests.registries.account import BASIC
from tests.stack.sandboxes import Started
from tests.support.waiting import LONG_WAIT


@dataclass(frozen=True, slots=True)
class Registry:
    """The machine's registry, of which only the jobs' own repositories are looked at."""

    url: str
    """Where its API is."""

    push_name: str
    """How the engine calls it in the names of images."""

    def tags(self, job: Started) -> dict[str, str]:
        """Return the tags of the job's repository with their digests."""
        base = f"{self.url}/v2/{job.repository}"
        answer = requests.get(f"{base}/tags/list", auth=BASIC, timeout=LONG_WAIT)
        if answer.status_code == 404:
            return {}
        kinds = (
            "application/vnd.docker.distribution.manifest.v2+json",
            "application/vnd.oci.image.manifest.v1+json",
        )
        return {
            tag: requests.head(
                f"{base}/manifests/{tag}",
                headers={"accept": ", ".join(kinds)},
                auth=BASIC,
                timeout=LONG_WAIT,
            ).headers["docker-content-digest"]
            for tag in answer.json()["tags"] or ()
        }
