"""What a Docker Engine refuses or fails to do, as errors of a launch."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import requests
import structlog
import urllib3
from docker.errors import APIError, DockerException

from workspaces.runtimes import boot
from workspaces.runtimes.base import LaunchError

logger = structlog.get_logger(__name__)

_NOT_YET_REMOVED = re.compile(
    r"remove (root )?filesystem|resource busy|directory not empty|did not receive an exit"
)


def is_asked_again(error: APIError) -> bool:
    """Whether a removal that failed may succeed when the engine is asked for it again.

    409: somebody else's removal is in progress; the container is gone when that is done. 500 with
    words like these: an engine with much to do has not ended its processes or emptied its folder in
    time. It keeps such a container as "dead", to be removed.
    """
    said = str(error.explanation).lower()
    return error.status_code == 409 or (
        error.status_code == 500 and _NOT_YET_REMOVED.search(said) is not None
    )


def refused(error: APIError) -> LaunchError:
    """Return the error for something the engine would not create or start, in its own words."""
    reason = boot.one_line(str(error.explanation or "no reason given"))
    return LaunchError("launch-refused", f"The Docker Engine refused: {reason}")


@contextlib.contextmanager
def engine_errors() -> Iterator[None]:
    """Turn every failure of the SDK and of what is below it into ``adapter-unavailable``.

    The texts of transport errors name sockets, addresses and calls; they are logged, not passed on.
    """
    try:
        yield
    except APIError as error:
        reason = boot.one_line(str(error.explanation or "no reason given"))
        raise LaunchError(
            "adapter-unavailable", f"The Docker Engine did not do what was asked: {reason}"
        ) from error
    except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
        logger.warning("engine_not_reached", reason=str(error))
        raise LaunchError("adapter-unavailable", "The Docker Engine does not answer.") from error
    except OSError as error:
        logger.warning("engine_connection_lost", reason=str(error))
        raise LaunchError(
            "adapter-unavailable", "The connection to the Docker Engine was lost."
        ) from error
