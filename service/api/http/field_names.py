"""Names that an unknown field or query parameter may have been meant as."""

from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

Schema = dict[str, Any]

_LONGEST = 60  # characters of a name that is compared, which takes time that grows with it
SUGGESTIONS = 5
"""Unknown names of a request that are compared with the known ones."""
_SHORTEST = 3  # characters of a name that may stand for a longer one
_MOST_LISTED = 25  # names that a detail lists
_ALIKE = 0.7  # from 0 to 1; `lamda` and `lambda` are 0.91 alike


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """Return the detail of an unknown name, with the known one that it was probably meant as, or with all of them.

    Args:
        what: the noun, such as ``field``.
        name: the unknown name; it is not quoted, because an input may be a true count.
        known: the names that are accepted there.
    """
    alike = meant(name, known)
    if alike is not None:
        return f"unknown {what}; did you mean {alike}?"
    return f"unknown {what}; expected one of {', '.join(sorted(known))}" if is_listed(known) else f"unknown {what}"


def is_listed(known: Collection[str]) -> bool:
    """Return whether these are few enough names for a detail to list them."""
    return 0 < len(known) <= _MOST_LISTED


def meant(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a name was probably meant as: one much like it, or the only one that it begins."""
    if len(name) > _LONGEST:
        return None
    alike = get_close_matches(name, sorted(known), 1, _ALIKE)
    begun = [one for one in known if one.startswith(name)] if len(name) >= _SHORTEST else []
    return alike[0] if alike else begun[0] if len(begun) == 1 else None


def fields_at(model: type[BaseModel], path: Sequence[int | str]) -> set[str]:
    """Return the names of the fields that a model's object has at a place.

    Args:
        path: pydantic's location of the object, in which steps also name the members of unions.
    """
    document = _schema(model)
    places = list(_alternatives(document, document))
    for step in path:
        places = [one for place in _step(places, step) for one in _alternatives(place, document)]
    return {name for place in places for name in place.get("properties", ())}


@cache
def _schema(model: type[BaseModel]) -> Schema:
    return TypeAdapter(model).json_schema()  # also of a body that may be absent, whose type is a union


def _alternatives(place: Schema, document: Schema) -> Iterator[Schema]:
    """Yield the schemas that a value may follow, without references and unions."""
    if "$ref" in place:
        yield from _alternatives(document["$defs"][place["$ref"].rpartition("/")[2]], document)
    for union in ("anyOf", "oneOf", "allOf"):
        for one in place.get(union, ()):
            yield from _alternatives(one, document)
    if "properties" in place or "items" in place or "additionalProperties" in place:
        yield place


def _step(places: Sequence[Schema], step: int | str) -> list[Schema]:
    """Return the schemas that a step of a location leads to: a field, an item, or a member of a union."""
    fields = [place["properties"][step] for place in places if step in place.get("properties", ())]
    members = [place for place in places if any(_is_tag(step, field) for field in place.get("properties", {}).values())]
    items = [place["items"] for place in places if "items" in place] if isinstance(step, int) else []
    others = [found for place in places if isinstance(found := place.get("additionalProperties"), dict)]
    return fields or members or items or others or list(places)


def _is_tag(step: int | str, field: Schema) -> bool:
    return field.get("const") == step
