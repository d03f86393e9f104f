"""Reading and writing the fields of plan documents, in which every exact number is a string."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from service.errors import InvalidInput
from service.privacy.numbers import exact_text, parse_exact

Document = Mapping[str, Any]


def read_exact(document: Document, at: str, field: str) -> Fraction:
    """Return the exact number of a field.

    Args:
        at: JSON pointer of the document, for the fault.

    Raises:
        InvalidInput: the field is not a number within the limits.
    """
    try:
        return parse_exact(str(document[field]))
    except ValueError as error:
        raise InvalidInput.at(f"{at}/{field}", str(error)) from None


def read_positive(document: Document, at: str, field: str) -> Fraction:
    """Return the exact number of a field that must be above 0.

    Raises:
        InvalidInput: it is not.
    """
    value = read_exact(document, at, field)
    if value <= 0:
        raise InvalidInput.at(f"{at}/{field}", "expected a number above 0")
    return value


def read_non_negative(document: Document, at: str, field: str) -> Fraction:
    """Return the exact number of a field that must be at least 0.

    Raises:
        InvalidInput: it is not.
    """
    value = read_exact(document, at, field)
    if value < 0:
        raise InvalidInput.at(f"{at}/{field}", "expected a number of at least 0")
    return value


def read_noise_parameter(document: Document, at: str, parameter: str, loss: str, product: Fraction) -> Fraction:
    """Return a noise parameter that is stated as itself or as the loss per cell that it causes.

    Args:
        product: parameter times loss.

    Raises:
        InvalidInput: not exactly one of the two is stated, or it is not above 0.
    """
    stated = [field for field in (parameter, loss) if document.get(field) is not None]
    if len(stated) != 1:
        raise InvalidInput.at(
            at, f"expected exactly one of {parameter} and {loss}, got {'both' if stated else 'neither'}"
        )
    value = read_positive(document, at, stated[0])
    return value if stated[0] == parameter else product / value


def write_noise_parameter(parameter: str, value: Fraction, loss: str, per_cell: Fraction) -> dict[str, str]:
    """Return the field of a noise parameter; of its loss per cell where only that is within the limits of a number."""
    text = exact_text(value)
    try:
        parse_exact(text)
    except ValueError:
        return {loss: exact_text(per_cell)}
    return {parameter: text}
