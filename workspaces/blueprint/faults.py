"""Turns what pydantic found wrong into faults with JSON pointers and stable codes.

====================  =========================================================================
Code                  Meaning
====================  =========================================================================
required              the member is missing, or null
unknown-member        no such member; the detail suggests a near one
auth-ref-refused      ``authRef`` is never accepted from a client
server-owned          the member is filled in by the control plane
wrong-type            another JSON type is expected; nothing is converted
not-allowed           the value is not one of the allowed ones
out-of-range          the number is too small or too large
empty                 the string is empty or all white space
too-long              the string has too many characters or bytes
too-few, too-many     the array or object has too few or too many entries
malformed             the string does not follow its grammar
malformed-text        the string is not well-formed Unicode
control-character     the string holds a control or invisible character
reserved-name         the environment variable belongs to the control plane
reserved-path         the directory belongs to the operating system
outside-workspace     the working directory is not below the workspace root
duplicate             another entry has the same id
url-scheme            sources cannot be fetched with this scheme
url-credentials       the URL holds a user name, password or token
====================  =========================================================================
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from controlplane.errors import Fault

MAX_FAULTS: Final = 500
"""No answer names more faults than this; a body may hold a hundred thousand."""

_SHOWN_NAME: Final = 64
_SHOWN_POINTER: Final = 512

_EXPECTED: Final = {
    "string_type": "a string",
    "string_sub_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "an array",
    "dict_type": "an object",
    "mapping_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}

_TYPE_NAMES: Final = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def without_lone_surrogates(data: object, pointer: str) -> tuple[object, list[Fault]]:
    """Return ``data`` without lone surrogates, and a fault for each string that held one.

    JSON can spell half of a surrogate pair (``"\\ud800"``); such a string has no UTF-8 form, so
    neither pydantic nor a database can hold it. Values are replaced by an empty string and
    members are left out. Walks without recursion: nesting may be deep.
    """
    if not _holds_lone_surrogates(data):
        return data, []
    faults: list[Fault] = []
    if isinstance(data, str):
        return "", [_malformed_text(pointer)]
    root: list[object] = [data]
    pending: list[tuple[list[object] | dict[str, object], str]] = [(root, pointer)]
    while pending:
        container, here = pending.pop()
        entries: Iterable[tuple[int | str, object]] = (
            list(container.items()) if isinstance(container, dict) else list(enumerate(container))
        )
        for key, value in entries:
            there = here if container is root else f"{here}/{_token(key)}"
            if isinstance(key, str) and not _is_well_formed(key):
                faults.append(_malformed_text(there))
                cast("dict[str, object]", container).pop(key)
                continue
            copy: object = value
            if isinstance(value, str) and not _is_well_formed(value):
                faults.append(_malformed_text(there))
                copy = ""
            elif isinstance(value, dict | list):
                copy = value.copy()
                pending.append((copy, there))
            container[key] = copy  # type: ignore[index]
    return root[0], faults


def faults_of(
    error: ValidationError, *, model: type[BaseModel], pointer: str, known: Sequence[Fault] = ()
) -> list[Fault]:
    """Return the faults of ``error``, whose locations begin at ``pointer`` in the body.

    Locations that ``known`` already names are left out.
    """
    places = {fault.pointer for fault in known}
    faults = []
    for details in error.errors(include_url=False)[:MAX_FAULTS]:
        if details["type"] == "default_factory_not_called":
            continue  # a consequence of another fault
        fault = _fault_of(details, model, pointer)
        if fault.pointer not in places:
            faults.append(fault)
    return faults


def _fault_of(details: ErrorDetails, model: type[BaseModel], pointer: str) -> Fault:
    kind, context = details["type"], details.get("ctx", {})
    location = [*_members(model, details["loc"]), *context.get("at", ())]
    code, detail = kind, f"{details['msg']}"
    if kind == "extra_forbidden":
        name = str(location[-1])
        if name == "authRef":
            code = "auth-ref-refused"
            detail = "is never accepted from a client; select a connected repository instead."
        else:
            code = "unknown-member"
            detail = f"is not a known member.{_suggestion(name, _names_at(model, details['loc']))}"
    elif kind == "missing":
        code, detail = "required", "is required."
    elif kind in _EXPECTED:
        given = _TYPE_NAMES.get(type(details["input"]), "something else")
        if type(details["input"]) is float and _EXPECTED[kind] == "an integer":
            given = "a fraction"  # 2.0 is none to JSON Schema, and one to us
        code, detail = "wrong-type", f"must be {_EXPECTED[kind]}, not {given}."
    elif kind == "literal_error":
        code, detail = "not-allowed", f"must be {context['expected']}."
        detail += _suggestion(details["input"], _quoted(context["expected"]))
    elif kind == "union_tag_not_found" or _is_null_tag(details):
        location.append(_quoted(context["discriminator"])[0])
        code, detail = "required", "is required."
    elif kind == "union_tag_invalid":
        location.append(_quoted(context["discriminator"])[0])
        expected = _quoted(context["expected_tags"])
        code, detail = "not-allowed", f"must be one of {context['expected_tags']}."
        detail += _suggestion(context["tag"], expected)
    elif kind in {"greater_than_equal", "less_than_equal"}:
        bound = context.get("ge", context.get("le"))
        code = "out-of-range"
        detail = f"must be {'at least' if 'ge' in context else 'at most'} {bound}."
    elif kind == "finite_number":
        code, detail = "out-of-range", "must be a finite number."
    elif kind == "string_too_short":
        code, detail = "empty", "must not be empty."
    elif kind == "string_too_long":
        code = "too-long"
        detail = f"must not be longer than {context['max_length']} characters."
    elif kind == "too_long":
        code, detail = "too-many", f"must not have more than {context['max_length']} entries."
    elif kind == "too_short":
        code, detail = "too-few", f"must have at least {context['min_length']} entries."
    elif kind == "string_unicode":
        code, detail = "malformed-text", "must be well-formed Unicode."
    elif kind == "invalid_key":
        code, detail = "wrong-type", "must have a string as its name."
    shown = pointer + "".join(f"/{_token(name)}" for name in location)
    return Fault(code, detail, pointer=shown[:_SHOWN_POINTER])


def _is_null_tag(details: ErrorDetails) -> bool:
    """Whether the member that decides between alternatives is null, and so is absent."""
    if details["type"] != "union_tag_invalid" or not isinstance(details["input"], dict):
        return False
    return details["input"].get(_quoted(details["ctx"]["discriminator"])[0]) is None


def _members(model: type[BaseModel], location: Sequence[int | str]) -> list[int | str]:
    """Return the names and positions of a pydantic location that stand in the JSON document.

    Pydantic adds the tag of a discriminated union and a marker for the key of a mapping.
    """
    return [entry for entry, _, in_document in _walk(model, location) if in_document]


def _names_at(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """Return the names of the members that may stand where ``location`` ends."""
    *_, (_, parents, _) = _walk(model, location)
    return [field.alias or name for one in parents for name, field in one.model_fields.items()]


def _walk(
    model: type[BaseModel], location: Sequence[int | str]
) -> Iterator[tuple[int | str, list[type[BaseModel]], bool]]:
    """Yield each entry of a location, the models it is a member of, and if JSON has the entry."""
    parents = [model]
    for position, entry in enumerate(location):
        if len(parents) > 1:
            parents = [one for one in parents if entry in _tags(one)]
            yield entry, parents, False
            continue
        marker = entry == "[key]" and not parents and position == len(location) - 1
        yield entry, parents, not marker
        if isinstance(entry, str):
            parents = [
                member
                for one in parents
                for name, field in one.model_fields.items()
                if (field.alias or name) == entry
                for member in _models_in(field.annotation)
            ]


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


def _tags(model: type[BaseModel]) -> list[object]:
    return [
        value
        for field in model.model_fields.values()
        if typing.get_origin(field.annotation) is typing.Literal
        for value in typing.get_args(field.annotation)
    ]


def _suggestion(given: object, candidates: Sequence[str]) -> str:
    if not isinstance(given, str) or len(given) > _SHOWN_NAME:
        return ""
    near = difflib.get_close_matches(given, candidates, n=1)
    return f" Did you mean '{near[0]}'?" if near else ""


def _quoted(text: str) -> list[str]:
    """Return the names that pydantic lists as ``'a', 'b' or 'c'``."""
    return text.split("'")[1::2]


def _token(name: int | str) -> str:
    """Return one reference token of a JSON pointer (RFC 6901), printable and bounded."""
    text = str(name)
    text = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return text[:_SHOWN_NAME].replace("~", "~0").replace("/", "~1")


def _holds_lone_surrogates(data: object) -> bool:
    pending = [data]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            if not _is_well_formed(value):
                return True
        elif isinstance(value, dict):
            pending.extend(value)
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return False


def _is_well_formed(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _malformed_text(pointer: str) -> Fault:
    return Fault("malformed-text", "holds a lone surrogate.", pointer=pointer[:_SHOWN_POINTER])
