"""Media types that a client accepts, by its header Accept (RFC 9110, 12.5.1)."""

import re
from collections.abc import Collection, Iterator, Sequence

from service.errors import NotAcceptable

JSON = "application/json"
_MOST_RANGES = 50  # and characters: of longer headers, only the first ranges count
_LONGEST = 1000
_QUALITY = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")  # RFC 9110, 12.4.2


def require_acceptable(accept: str, media_types: Collection[str]) -> None:
    """Refuse a request that accepts none of the media types of the answer; an empty header accepts all.

    Raises:
        NotAcceptable: no type is accepted.
    """
    if not accept.strip():
        return
    if any(_is_admitted(accept, media_type) for media_type in media_types):
        return
    *others, last = sorted(media_types)
    expected = f"{', '.join(others)} or {last}" if others else last
    raise NotAcceptable(f"expected an Accept header that admits {expected}")


def prefers(accept: str, media_type: str) -> bool:
    """Return True where an Accept header prefers this media type, by its name, at least as much as JSON."""
    return preferred(accept, (media_type,)) is not None


def preferred(accept: str, media_types: Sequence[str]) -> str | None:
    """Return the media type that an Accept header prefers by name; None where it prefers JSON.

    Where it admits no JSON, a range such as ``text/*`` names the first type that it admits.
    """
    weights = {JSON: 0.0} | dict.fromkeys(media_types, 0.0)
    for name, weight in _ranges(accept):
        if name in weights:
            weights[name] = max(weights[name], weight)
    best = max(media_types, key=lambda media_type: weights[media_type])  # the first of equally preferred ones
    if weights[best] > 0 and weights[best] >= weights[JSON]:
        return best
    if not accept.strip() or _is_admitted(accept, JSON):
        return None
    return next((media_type for media_type in media_types if _is_admitted(accept, media_type)), None)


def form_of(accept: str, own: str, others: Sequence[str] = ()) -> str:
    """Return the media type in which a request is answered whose body is in one of the answer's media types.

    Args:
        accept: the header Accept.
        own: the media type of the body; the answer has it too, unless the header prefers another one.
        others: further media types, for requests that name them.
    """
    named = preferred(accept, (own, *others))
    if named is not None:
        return named
    return JSON if _weight_of(accept, JSON) > _weight_of(accept, own) else own


def _is_admitted(accept: str, media_type: str) -> bool:
    return _weight_of(accept, media_type) > 0


def _weight_of(accept: str, media_type: str) -> float:
    """Return the weight of the most specific range that matches a media type; 0 where none does."""
    weights = dict(_ranges(accept))
    ranges = (media_type, f"{media_type.partition('/')[0]}/*", "*/*")
    return next((weights[one] for one in ranges if one in weights), 0.0)


def _ranges(accept: str) -> Iterator[tuple[str, float]]:
    """Yield each media range of the header with its weight."""
    for wish in accept[:_LONGEST].split(",")[:_MOST_RANGES]:
        name, *parameters = (part.strip().lower() for part in wish.split(";"))
        yield name, _weight(parameters)


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "q":
            return float(value) if _QUALITY.fullmatch(value) else 0.0
    return 1.0
