"""Generated calls of every operation of the description, sent to a real API process.

schemathesis makes them of ``openapi.json``, the same ones each time: sound ones, ones with a fault,
and the edges of every limit. Half of the sound ones are about somebody who has something of
everything, so that they get past the first look. All the checks that schemathesis has hold every
answer against the description.
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
import schemathesis
import structlog
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from schemathesis.config import HealthCheck, SchemathesisConfig
from schemathesis.core.transport import Response
from schemathesis.schemas import BaseSchema

from tests.conformance import document
from tests.conftest import OWNER
from tests.security.owned import Place
from tests.stack.api_process import api_process
from tests.support.waiting import LONG_WAIT

Call = schemathesis.Case[Any]
log = structlog.get_logger(__name__)

SEED = int(os.environ.get("SVC_TEST_SEED", "16"))
EXAMPLES = int(os.environ.get("SVC_TEST_CASES", "200"))
"""Of each operation, beside its documented examples and the edges of its limits; more than 20,000
calls in all. By hand, other ones: ``SVC_TEST_CASES=500 SVC_TEST_SEED=2``."""
GATEWAY_TOKEN = "gateway-token"
_TOKEN_HEADER = "x-svc-gateway-token"
OWNERS = ("ownerUserId", "userId")

OWNED = {"connectedAccounts.create", "sandboxes.create", "sshKeys.create", "workspaces.create"}
"""Operations whose body says whose something will be."""

UPSTREAM_FAILURES = {"package-index-unavailable", "scm-provider-failed", "workspace-unreachable"}
"""No index has been read here, no source hosting answers, and no container runs."""
SAID_BY_SCHEMAS = {"unknown-member", "unknown-parameter", "wrong-type", "max-length", "min-length",
                   "max-value", "min-value", "null", "not-a-choice"}  # fmt: skip
"""Faults that a request without any by its schema cannot have. Others no schema can say: that a
cursor belongs to another list, or that one of two members has to go."""

schemathesis.serializer.alias("application/x-tar", "application/octet-stream")

# hypothesis draws some values from the constants of our modules that are loaded at that moment,
# which depends on the tests that ran before in this process: the calls would not be the same ones.
providers._get_local_constants = lambda: Constants()
providers.CONSTANTS_CACHE.cache.clear()


class Calls:
    """Makes calls for one who has something of everything, and checks what is answered."""

    def __init__(self, url: str, place: Place) -> None:
        self.url = url
        self.place = place
        self.session = requests.Session()
        self.made: Counter[tuple[int, str | None]] = Counter()

    def check(self, case: Call) -> None:
        """Make a call; fail unless everything about the answer is described."""
        assert case.meta is not None
        sound = case.meta.generation.mode.is_positive
        if sound:
            self._put_in(case)
        answer = case.call(base_url=self.url, session=self.session, timeout=LONG_WAIT)
        code = answer.json().get("code") if answer.status_code >= 400 else None
        self.made[answer.status_code, code] += 1
        case.validate_response(answer, transport_kwargs={"session": self.session})
        if answer.status_code >= 500:
            assert answer.json()["code"] in UPSTREAM_FAILURES, answer.text
        if sound and answer.status_code == 400 and case.method == case.operation.method.upper():
            self._require_reason(answer)

    def _put_in(self, case: Call) -> None:
        """Have one owner in all places; in half of the calls the one who has something."""
        query = case.query or {}
        body = case.body if isinstance(case.body, dict) else {}
        named = [place[name] for place in (query, body) for name in OWNERS if name in place]
        ours = sum(json.dumps([query, case.path_parameters], default=str).encode()) % 2 == 0
        if ours and case.operation.definition.raw["operationId"] != "workspaces.exec":
            for name in case.path_parameters or {}:
                case.path_parameters[name] = self.place.ids[name]
            for name in set(body) & set(self.place.ids):
                body[name] = self.place.ids[name]
        if ours and not named:
            self._name_owner(case)
        for place in (query, body):
            for name in OWNERS:
                if name in place:
                    place[name] = OWNER if ours else named[0]
        if ours and _TOKEN_HEADER in (case.headers or {}):
            case.headers[_TOKEN_HEADER] = GATEWAY_TOKEN

    def _name_owner(self, case: Call) -> None:
        """Say whose something is where no schema can require it: two members say the same."""
        operation = case.operation.definition.raw
        if any(each["name"] == OWNERS[0] for each in operation.get("parameters", ())):
            case.query = {**(case.query or {}), OWNERS[0]: OWNER}
        elif operation["operationId"] in OWNED and isinstance(case.body, dict):
            case.body[OWNERS[0]] = OWNER

    def _require_reason(self, answer: Response) -> None:
        problem = answer.json()
        faults = {
            fault["code"]
            for fault in problem["errors"]
            # 2.0 is a whole number to JSON Schema, and a fraction to us.
            if "not a fraction" not in fault["detail"]
        }
        assert not faults & SAID_BY_SCHEMAS, f"a sound request is refused: {problem}"


def description(*areas: str, method: str | None = None) -> BaseSchema:
    """Return what calls of these areas are made of; an area is the first part of operation ids.

    ``method`` chooses among them; a further ``include`` would add to them.
    """
    config = SchemathesisConfig(seed=SEED, suppress_health_check=[HealthCheck.all])
    project = config.projects.default
    project.generation.max_examples = EXAMPLES
    project.generation.no_shrink = True
    project.generation.database = "none"
    project.generation.deterministic = True
    project.max_stream_events = 1
    project.checks.not_a_server_error.expected_statuses += ["502"]
    project.checks.positive_data_acceptance.expected_statuses += ["400", "412", "426"]
    project.checks.negative_data_rejection.expected_statuses += ["431"]
    schema = schemathesis.openapi.from_dict(_as_read(), config=config)
    return schema.include(operation_id_regex=rf"({'|'.join(areas)})\.", method=method)


def _as_read() -> dict[str, Any]:
    """Return the description as schemathesis reads it, which differs in three things.

    It takes each event of a stream for what the schema is of. And what the description says in
    words it has to find in every schema: that a member which is null counts as absent, and that the
    owner may be named otherwise.
    """
    read: dict[str, Any] = json.loads(json.dumps(document()))
    names = set()
    for operations in read["paths"].values():
        for operation in operations.values():
            for answer in operation["responses"].values():
                for media, content in answer.get("content", {}).items():
                    if media == "text/event-stream":
                        content["schema"] = {"type": "object"}
            for content in operation.get("requestBody", {}).get("content", {}).values():
                names.add(content["schema"].get("$ref", "").rpartition("/")[2])
    schemas = read["components"]["schemas"]
    for name in names & set(schemas):
        if OWNERS[0] in schemas[name].get("required", ()):
            schemas[name]["required"].remove(OWNERS[0])
        _take_null(schemas[name])
    for name in ("Blueprint", "EgressPolicy"):
        _take_null_inside(schemas[name])
    return read


def _take_null(schema: dict[str, Any]) -> None:
    for name, member in schema.get("properties", {}).items():
        if name not in schema.get("required", []):
            schema["properties"][name] = {"anyOf": [member, {"type": "null"}]}


def _take_null_inside(schema: Any) -> None:
    """Take null for the members of every object below, too: these schemas have no references."""
    below = schema.values() if isinstance(schema, dict) else schema
    for part in below if isinstance(schema, dict | list) else ():
        _take_null_inside(part)
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        _take_null(schema)


def _rsa_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
    ).decode()


@contextmanager
def served(folder: Path, place: Place, **settings: str) -> Iterator[Calls]:
    """Serve to calls about a place, with all that can be set up."""
    with api_process(
        folder / "api.log",
        SVC_CREDENTIALS_KEY=base64.b64encode(bytes(32)).decode(),
        WORKSPACE_SSH_GATEWAY_TOKEN=GATEWAY_TOKEN,
        SCM_APP_ID="1",
        SCM_APP_PRIVATE_KEY=_rsa_key(),
        SCM_APP_WEBHOOK_SECRET="a secret",
        SCM_API_BASE_URL="http://127.0.0.1:1",
        **settings,
    ) as api:
        calls = Calls(f"http://127.0.0.1:{api.port}", place)
        with calls.session:
            yield calls
        answers = {f"{status} {code or ''}": count for (status, code), count in calls.made.items()}
        log.info("calls_made", calls=calls.made.total(), answers=answers)
        assert "Traceback" not in api.told
