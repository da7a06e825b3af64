"""Calls to the API server on behalf of one installation, in one namespace.

Objects go in and come out as the JSON they are. Every call has a time limit, and whatever goes
wrong comes out as a ``LaunchError``, or as ``Conflict`` or None where that is an answer.
"""

from __future__ import annotations

import builtins
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from kubernetes.client import ApiException

from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.boot import one_line
from workspaces.runtimes.kubernetes.cluster_access import Access

Document = dict[str, Any]

INSTANCE_LABEL = "svc.instance"
RUN_LABEL = "svc.run"
WORKSPACE_LABEL = "svc.workspace"
MERGE_PATCH = "application/merge-patch+json"
PAGE = 500
TRIES_WHEN_BUSY = 5

PODS = "pods"
CLAIMS = "persistentvolumeclaims"
EVENTS = "events"
POLICIES = "networkpolicies"
_GROUPS = {POLICIES: "/apis/networking.k8s.io/v1"}


class Conflict(Exception):
    """The name is taken, or the object is not what the caller has seen any more."""


class Cluster:
    """The objects of one namespace."""

    def __init__(self, access: Access, namespace: str, instance_id: str, *, timeout: float) -> None:
        self.access = access
        self.namespace = namespace
        self.instance_id = instance_id
        self._timeout = timeout

    # --------------------------------------------------------------------------------- reading

    def get(self, kind: str, name: str) -> Document | None:
        """Return an object, or None when there is none of that name."""
        return self._call("GET", self._path(kind, name), none_for=(404,))

    def list(
        self, kind: str, labels: Mapping[str, str], fields: str = ""
    ) -> builtins.list[Document]:
        """Return all objects with these labels, page by page."""
        return [item for page in self._pages(kind, labels, fields) for item in page["items"]]

    def version(self) -> str:
        """Return what the API server says that it is."""
        found = self._call("GET", "/version") or {}
        return str(found.get("gitVersion") or "")

    def uid(self) -> str:
        """Return the namespace's id, which no other one in any cluster has."""
        found = self._call("GET", f"/api/v1/namespaces/{self.namespace}", none_for=(404,))
        if found is None:
            raise LaunchError(
                "adapter-unavailable", f"The cluster has no namespace “{self.namespace}”."
            )
        return str(found["metadata"]["uid"])

    def events_of(self, uid: str) -> builtins.list[Document]:
        """Return what the cluster has noted about an object, the last one first."""
        found = self.list(EVENTS, {}, fields=f"involvedObject.uid={uid}")
        return sorted(found, key=lambda each: str(each.get("lastTimestamp") or ""), reverse=True)

    def watch(self, kind: str, name: str, version: str, *, seconds: int) -> Iterator[Document]:
        """Give the states of one object that follow ``version``, for so many seconds.

        Ends early when the connection is cut, when the API server does not know that version any
        more, and where it refuses the watch after the pause it asks for. A state has
        ``deleted: True`` beside its members when it was the last one.
        """
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
            "allowWatchBookmarks": "true",
        }
        try:
            response = self._send("GET", f"{self._path(kind)}?{urlencode(query)}", seconds + 5)
        except LaunchError:
            return  # whoever looks at the object next is told whether the server answers
        try:
            if response.status != 200:
                # Whoever asks again at once would keep a busy server busy.
                if response.status != 410:
                    time.sleep(min(float(seconds), _seconds(response.headers.get("Retry-After"))))
                return
            for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] != "BOOKMARK":
                    yield event["object"] | {"deleted": event["type"] == "DELETED"}
        except (urllib3.exceptions.HTTPError, OSError, ValueError, LookupError, TypeError):
            return
        finally:
            response.close()
            response.release_conn()

    # --------------------------------------------------------------------------------- changing

    def create(self, kind: str, document: Document) -> Document:
        """Create an object. Raises ``Conflict`` when the name is taken."""
        return self._call("POST", self._path(kind), document) or {}

    def patch(self, kind: str, name: str, document: Document) -> Document | None:
        """Merge members into an object; None when there is none.

        With ``metadata.resourceVersion`` among them ``Conflict`` says that it has changed since.
        """
        return self._call("PATCH", self._path(kind, name), document, none_for=(404,))

    def delete(
        self, kind: str, name: str, *, uid: str, version: str = "", grace: int | None = None
    ) -> bool:
        """Have an object end; False when it is gone. Raises ``Conflict`` when it is another one."""
        preconditions = {"uid": uid} | ({"resourceVersion": version} if version else {})
        options: Document = {"preconditions": preconditions, "propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        return self._call("DELETE", self._path(kind, name), options, none_for=(404,)) is not None

    def may(self, verb: str, resource: str, subresource: str = "") -> bool:
        """Ask whether we are allowed something here."""
        group = "networking.k8s.io" if resource == POLICIES else ""
        attributes = {
            "namespace": self.namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": subresource,
            "name": self.namespace if resource == "namespaces" else "",
        }
        review = self._call(
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            {"spec": {"resourceAttributes": attributes}},
        )
        return bool((review or {}).get("status", {}).get("allowed"))

    def logs(self, name: str, container: str, lines: int) -> bytes:
        """Return the end of what a container has written."""
        path = f"{self._path(PODS, name)}/log?container={container}&tailLines={lines}"
        try:
            response = self._send("GET", path, self._timeout)
            content = _content(response)
        except LaunchError:
            return b""
        return content if response.status == 200 else b""

    # ---------------------------------------------------------------------------------- details

    def _path(self, kind: str, name: str = "") -> str:
        path = f"{_GROUPS.get(kind, '/api/v1')}/namespaces/{self.namespace}/{kind}"
        return f"{path}/{quote(name)}" if name else path

    def _pages(self, kind: str, labels: Mapping[str, str], fields: str) -> Iterator[Document]:
        query = {
            "limit": str(PAGE),
            "labelSelector": ",".join(f"{k}={v}" for k, v in labels.items()),
        }
        if fields:
            query["fieldSelector"] = fields
        while True:
            page = self._call("GET", f"{self._path(kind)}?{urlencode(query)}") or {}
            yield page
            following = page.get("metadata", {}).get("continue")
            if not following:
                return
            query["continue"] = following

    def _call(
        self,
        method: str,
        path: str,
        document: Document | None = None,
        *,
        none_for: tuple[int, ...] = (),
    ) -> Document | None:
        """Make one call; a server that is too busy is asked again, as it says when."""
        for left in reversed(range(TRIES_WHEN_BUSY)):
            response = self._send(method, path, self._timeout, document)
            content = _content(response)
            # A quota that others use at the same moment is told as a conflict of its own.
            busy = response.status == 429 or (response.status == 409 and b"quota" in content)
            if not busy or not left:
                break
            time.sleep(min(5.0, _seconds(response.headers.get("Retry-After"))))
        if 200 <= response.status < 300:
            try:
                found = json.loads(content)
            except ValueError as error:
                raise _no_answer() from error
            return found if isinstance(found, dict) else {}
        if response.status in none_for:
            return None
        raise refusal(response.status, content)

    def _send(
        self, method: str, path: str, timeout: float, document: Document | None = None
    ) -> Any:
        client = self.access.client()
        headers = {"Accept": "application/json", **self.access.headers()}
        if document is not None:
            headers["Content-Type"] = MERGE_PATCH if method == "PATCH" else "application/json"
        url = f"{str(client.configuration.host).rstrip('/')}{path}"
        try:
            answer = client.call_api(method, url, headers, document, _request_timeout=timeout)
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise _no_answer() from error
        return answer.response


def _content(response: Any) -> bytes:
    """Return all of an answer; it may be cut short, or come too slowly."""
    try:
        return bytes(response.read() or b"")
    except (urllib3.exceptions.HTTPError, OSError) as error:
        response.close()
        raise _no_answer() from error


def _no_answer() -> LaunchError:
    return LaunchError("adapter-unavailable", "The cluster's API server does not answer.")


def refusal(status: int, content: bytes) -> Exception:
    """Return what an answer with an error means."""
    try:
        told = json.loads(content)
        message, reason = str(told.get("message") or ""), str(told.get("reason") or "")
    except (ValueError, AttributeError):
        message, reason = content.decode("utf-8", "replace"), ""
    said = one_line(message) or f"HTTP status {status}"
    if status == 409 and "quota" not in message:
        return Conflict(said)
    if status == 401:
        return LaunchError("adapter-unavailable", "The cluster does not know who we are (401).")
    if status == 403 and "exceeded quota" in message:
        return LaunchError("quota-exceeded", f"The namespace's quota is used up: {said}")
    if status == 403 and "is forbidden: User" in message:
        return LaunchError("adapter-unavailable", f"The cluster does not allow it: {said}")
    if status in (400, 403, 422) and "RuntimeClass" in message:
        return LaunchError("oci-runtime-missing", f"The cluster has no such runtime class: {said}")
    if status in (400, 403, 406, 422):
        return LaunchError("admission-refused", f"The cluster refused the workspace's Pod: {said}")
    if status >= 500 or reason in ("Timeout", "ServerTimeout", "TooManyRequests"):
        return LaunchError("adapter-unavailable", f"The cluster's API server failed: {said}")
    return LaunchError("launch-refused", f"The cluster refused: {said}")


def labels_of(document: Document) -> dict[str, str]:
    """Return an object's labels."""
    return document["metadata"].get("labels") or {}


def annotations_of(document: Document) -> dict[str, str]:
    """Return an object's annotations."""
    return document["metadata"].get("annotations") or {}


def _lines(response: Any) -> Iterator[bytes]:
    kept = b""
    for piece in response.stream(amt=None, decode_content=False):
        *lines, kept = (kept + piece).split(b"\n")
        yield from filter(None, lines)


def _seconds(retry_after: str | None) -> float:
    try:
        return max(0.1, float(retry_after or 1))
    except ValueError:
        return 1.0
