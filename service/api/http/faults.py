"""Faults of invalid requests: places as JSON pointers, and texts that state what is accepted there.

No text repeats an input's value: it may be a true count. A name that a value was probably meant as is one of the
contract's.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import NoneType
from typing import Any

from pydantic import BaseModel, ValidationError

from service.api.http.field_names import SUGGESTIONS, fields_at, meant, unknown
from service.api.http.json_text import pointer_step
from service.api.schemas.patterns import IN_WORDS
from service.api.schemas.plan_models import NODE_TYPES
from service.errors import Fault

_NAMES = frozenset({"enum", "extra_forbidden", "literal_error", "union_tag_invalid"})  # errors about names
_QUOTED = re.compile("'([^']*)'")


def faults_of(error: ValidationError, document: Any, model: type[BaseModel]) -> list[Fault]:
    """Return a model's faults in a document, with pointers as if the document were the body."""
    errors = error.errors(include_url=False)
    return faults_of_errors([{**fault, "loc": ("body", *fault["loc"])} for fault in errors], document, model)


def faults_of_errors(errors: Sequence[Mapping[str, Any]], body: Any, model: type[BaseModel]) -> list[Fault]:
    """Return the faults that pydantic found in a request whose body has this model."""
    left = iter(range(SUGGESTIONS))
    return [
        _fault(fault, body, model if fault["type"] in _NAMES and next(left, None) is not None else None)
        for fault in errors
    ]


def _fault(fault: Mapping[str, Any], body: Any, model: type[BaseModel] | None) -> Fault:
    """Return a fault of a request.

    Args:
        model: the body's model, where a name that the fault does not know is to be compared with the known ones.
    """
    where, *path = fault["loc"]
    if fault["type"] == "json_invalid":
        return Fault("", "expected JSON")
    pointer = pointer_of(path, body) if where == "body" else "".join(f"/{step}" for step in fault["loc"])
    if fault["type"] == "union_tag_invalid":
        pointer += "/" + fault["ctx"]["discriminator"].strip("'")
    if fault["type"] == "extra_forbidden":
        known = set() if model is None else fields_at(model, path[:-1])
        return Fault(pointer, unknown("field", str(path[-1]), known))
    return Fault(pointer, _detail(fault) + _hint(fault, in_body=where == "body", compared=model is not None))


def _hint(fault: Mapping[str, Any], *, in_body: bool, compared: bool) -> str:
    """Return what can be said of a wrong value without quoting it: its type, or the name that it may be meant as."""
    context, value = fault.get("ctx") or {}, fault.get("input")
    value = context.get("tag", value)
    if fault["type"] in _NAMES and isinstance(value, str):
        names = _QUOTED.findall(str(context.get("expected", context.get("expected_tags", ""))))
        name = meant(value, names) if compared else None
        return f"; did you mean {name}?" if name else ""
    if not in_body or fault["type"] not in _OF_TYPES:
        return ""
    return f", got {_TYPES.get(type(value), 'another value')}"


def pointer_of(path: Sequence[int | str], body: Any) -> str:
    """Return the JSON pointer of a pydantic location, whose steps also name members of unions."""
    pointer, here = "", body
    for number, step in enumerate(path):
        last = number == len(path) - 1
        if isinstance(here, dict) and (step in here or (last and not _is_tag(step, here))):
            pointer += pointer_step(step)
            here = here.get(step)
        elif isinstance(here, list) and isinstance(step, int) and step < len(here):
            pointer += f"/{step}"
            here = here[step]
    return pointer


def _is_tag(step: int | str, here: Mapping[str, Any]) -> bool:
    return (step in NODE_TYPES and here.get("type") == step) or step == here.get("definition")


_TYPES: dict[type, str] = {
    NoneType: "null",
    bool: "a boolean",
    int: "a number",
    Decimal: "a number with a point or an exponent",
    str: "text",
    list: "a list",
    dict: "an object",
}
_OF_TYPES = frozenset(
    {
        "dict_type",
        "enum",
        "int_type",
        "list_type",
        "literal_error",
        "model_attributes_type",
        "model_type",
        "string_type",
    }
)
_DETAILS = {
    "missing": "expected this field; it is missing",
    "union_tag_invalid": "expected one of {expected_tags}",
    "union_tag_not_found": "expected an object with the field {discriminator}",
    "model_attributes_type": "expected an object",
    "model_type": "expected an object",
    "none_required": "expected null",
    "dict_type": "expected an object",
    "string_type": "expected text",
    "string_too_short": "expected text with a length of at least {min_length}",
    "string_too_long": "expected text with a length of at most {max_length}",
    "list_type": "expected a list",
    "too_short": "expected a list of at least {min_length}, got {actual_length}",
    "too_long": "expected a list of at most {max_length}, got {actual_length}",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "expected a whole number"),
    "greater_than_equal": "expected a number of at least {ge}",
    "less_than_equal": "expected a number of at most {le}",
}


def _detail(fault: Mapping[str, Any]) -> str:
    """Return the reason in the service's words, or in pydantic's where those do not quote the input."""
    context = fault.get("ctx") or {}
    if fault["type"] == "string_pattern_mismatch":
        return IN_WORDS.get(context["pattern"], f"expected text that matches {context['pattern']}")
    if fault["type"] in _DETAILS:
        return _DETAILS[fault["type"]].format_map(context)
    if fault["type"] == "value_error":
        return str(context["error"])
    message = str(fault["msg"])
    return message.replace("Input should be", "expected", 1) if message.startswith("Input should be") else message
