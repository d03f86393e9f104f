"""The vocabulary in which mechanisms and nodes describe the fields of their documents.

Each field is described once. This module reads and writes it; the HTTP interface derives its checks, with their JSON
pointers, and its schema from it. In a document, every exact number is a string and a distance is in counts. In a value,
a distance is in units of granularity.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from fractions import Fraction
from inspect import getdoc
from typing import Any, ClassVar, NamedTuple

from service.errors import InvalidInput
from service.privacy.numerics.numbers import exact_text, parse_exact

Document = Mapping[str, Any]
LARGEST_WHOLE = 2**53
"""Beyond it, some readers of JSON round an integer."""


class Unit(Enum):
    """The unit of an exact number, and the power of the granularity by which it is divided."""

    ORDER = "an order", 0
    PROBABILITY = "a probability", 0
    NATS = "nats", 0
    COUNTS = "counts", 1
    COUNTS_SQUARED = "counts, squared", 2
    STANDARD_DEVIATIONS = "standard deviations", 0

    def __init__(self, _: str, power: int) -> None:
        self.power = power


class NumberBound(NamedTuple):
    """A condition on an exact number, and its words in a fault."""

    holds: Callable[[Fraction], bool]
    expected: str


ABOVE_0 = NumberBound(lambda value: value.numerator > 0, "expected a number above 0")
AT_LEAST_0 = NumberBound(lambda value: value.numerator >= 0, "expected a number of at least 0")
PROBABILITY = NumberBound(lambda value: 0 <= value < 1, "expected a number of at least 0 and below 1")
ABOVE_1 = NumberBound(lambda value: value > 1, "expected an order above 1")


class Scale(NamedTuple):
    """The sensitivity that an alternative refers to, in units of granularity, and the granularity in counts."""

    sensitivity: Fraction | int = 1
    unit: Fraction = Fraction(1)


_COUNTS = Scale()


@dataclass(frozen=True)
class Field:
    """A field of a document.

    Attributes:
        required: whether a document must state it.
        default: the value in a document that does not state it; None if there is none, or if a missing field has a
            meaning of its own.
    """

    name: str
    _: KW_ONLY
    description: str = ""
    required: bool = False
    default: Any = None

    def read(self, document: Document, at: str, scale: Scale = _COUNTS) -> Any:  # noqa: ARG002
        """Return the value that a document states.

        Args:
            at: JSON pointer of the document, for the fault.

        Raises:
            InvalidInput: the value is outside its bounds.
        """
        return document[self.name] if self.required else document.get(self.name, self.default)

    def write(self, value: Any, scale: Scale = _COUNTS) -> dict[str, Any]:  # noqa: ARG002
        """Return the field of a document that states a value."""
        return {self.name: value}


@dataclass(frozen=True, kw_only=True)
class ExactNumber(Field):
    """An exact number.

    Attributes:
        unit: of the number in a document.
        bound: a condition that it must meet.
        whole_stays: whether an integer may be stated as one, and stays one.
    """

    unit: Unit
    bound: NumberBound
    whole_stays: bool = False

    def read(self, document: Document, at: str, scale: Scale = _COUNTS) -> Fraction:
        stated = document[self.name] if self.required else document.get(self.name, self.default)
        try:
            value = parse_exact(str(stated))
        except ValueError as error:
            raise InvalidInput.at(f"{at}/{self.name}", str(error)) from None
        if not self.bound.holds(value):
            raise InvalidInput.at(f"{at}/{self.name}", self.bound.expected)
        return value / scale.unit**self.unit.power if scale.unit != 1 and self.unit.power else value

    def write(self, value: Fraction, scale: Scale = _COUNTS) -> dict[str, Any]:
        return {self.name: exact_text(value * scale.unit**self.unit.power if scale.unit != 1 else value)}


@dataclass(frozen=True, kw_only=True)
class ExactNumbers(Field):
    """A list of exact numbers, at least one and at most ``most``, each with the bound."""

    bound: NumberBound
    most: int

    def read(self, document: Document, at: str, scale: Scale = _COUNTS) -> tuple[Fraction, ...]:  # noqa: ARG002
        return tuple(
            ExactNumber(str(number), required=True, unit=Unit.PROBABILITY, bound=self.bound).read(
                {str(number): stated}, f"{at}/{self.name}"
            )
            for number, stated in enumerate(document[self.name])
        )

    def write(self, value: Sequence[Fraction], scale: Scale = _COUNTS) -> dict[str, Any]:  # noqa: ARG002
        return {self.name: [exact_text(one) for one in value]}


@dataclass(frozen=True, kw_only=True)
class WholeNumber(Field):
    """A whole number.

    Attributes:
        least, most: its bounds.
        nested: the words of the fault if ``most`` also bounds the product with this field of all nodes above; else
            None.
    """

    least: int = 1
    most: int = LARGEST_WHOLE
    nested: str | None = None


class TextLine(Field):
    """A line of text for people."""


class TextLines(Field):
    """Lines of text for people."""


@dataclass(frozen=True, kw_only=True)
class Constant(Field):
    """A field with one possible value."""

    value: str


class PartitionNames(Field):
    """Names of partitions, or their number (``partitions.read_partitions``)."""


class Part(Field):
    """A plan."""


class Parts(Field):
    """Plans, at least one."""


@dataclass(frozen=True)
class Either:
    """Two alternatives, of which exactly one is stated: a noise parameter, or the loss of one cell that it causes.

    Attributes:
        product: returns parameter times loss for a sensitivity, in units of granularity.
    """

    parameter: ExactNumber
    loss: ExactNumber
    product: Callable[[Fraction | int], Fraction | int]

    @property
    def name(self) -> str:
        """The name of the mechanism's attribute that has the parameter."""
        return self.parameter.name

    @property
    def rule(self) -> str:
        """The rule in words."""
        return f"exactly one of {self.parameter.name} and {self.loss.name}"

    def read(self, document: Document, at: str, scale: Scale) -> Fraction:
        """Return the noise parameter, in units of granularity.

        Raises:
            InvalidInput: not exactly one of the two is stated, or it is not above 0.
        """
        by_parameter = document.get(self.parameter.name) is not None
        by_loss = document.get(self.loss.name) is not None
        if by_parameter is by_loss:
            raise InvalidInput.at(at, f"expected {self.rule}, got {'both' if by_loss else 'neither'}")
        if by_parameter:
            return self.parameter.read(document, at, scale)
        return self.product(scale.sensitivity) / self.loss.read(document, at)

    def write(self, value: Fraction, scale: Scale) -> dict[str, Any]:
        """Return the field of the parameter, or that of the loss if only this is within the limits of a number."""
        document = self.parameter.write(value, scale)
        try:
            parse_exact(document[self.parameter.name])
        except ValueError:
            return self.loss.write(self.product(scale.sensitivity) / value)
        return document


Fields = Sequence[Field | Either]


@dataclass(frozen=True)
class DocumentForm:
    """The form of a document: its fields, alternatives one by one, in the order in which faults are listed.

    Attributes:
        name: of the form in a schema.
        about: its description in a schema.
    """

    name: str
    about: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, kw_only=True)
class Inner(Field):
    """A document inside of a document."""

    form: DocumentForm


@dataclass(frozen=True, kw_only=True)
class InnerList(Inner):
    """Documents of one form, at least one and at most ``most``."""

    most: int


@dataclass(frozen=True, kw_only=True)
class InnerLists(Inner):
    """Lists of documents of one form: at least one list, each with at least one document, and at most ``most``."""

    most: int


@dataclass(frozen=True, kw_only=True)
class Type(Field):
    """The field that states the type of a mechanism or node."""

    value: str


class PlanElement:
    """A mechanism or node, as documents state it.

    Attributes:
        TYPE: its name in documents.
        BEFORE: fields shared with others that are listed before the type.
        FIELDS: its own.
        AFTER: shared fields that are listed after its own.
        DECLARED: whether it is known only by a guarantee that it states.
    """

    __slots__ = ()

    TYPE: ClassVar[str]
    BEFORE: ClassVar[Fields] = ()
    FIELDS: ClassVar[Fields]
    AFTER: ClassVar[Fields] = ()
    DECLARED: ClassVar[bool] = False

    @classmethod
    def form(cls) -> DocumentForm:
        """Return its form with all fields; the description is the first line of the docstring."""
        about = (getdoc(cls) or "").partition("\n")[0]
        fields: list[Field] = []
        for field in (*cls.BEFORE, Type("type", required=True, value=cls.TYPE), *cls.FIELDS, *cls.AFTER):
            if isinstance(field, Either):
                about += f" {field.rule[0].upper()}{field.rule[1:]}."
                fields += [field.parameter, field.loss]
            else:
                fields.append(field)
        return DocumentForm(cls.__name__, about, tuple(fields))


def read_fields(fields: Fields, document: Document, at: str, scale: Scale = _COUNTS) -> dict[str, Any]:
    """Return the values of fields by their names.

    Raises:
        InvalidInput: a field is not valid; the fault is of the first such field.
    """
    return {field.name: field.read(document, at, scale) for field in fields}


def write_fields(fields: Fields, value: object, scale: Scale = _COUNTS) -> dict[str, Any]:
    """Return the fields of a document that state a mechanism's attributes."""
    document: dict[str, Any] = {}
    for field in fields:
        document |= field.write(getattr(value, field.name), scale)
    return document
