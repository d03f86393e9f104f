"""Models of the contract's plans and mechanisms, made from the fields that mechanisms and nodes state."""

from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Literal, Union

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, PlainValidator, WithJsonSchema, create_model
from pydantic_core import CoreSchema
from typing_extensions import TypeAliasType

from service.api.schemas.exact_numbers import Exact, Label, Strict, Tags, WholeOrExact
from service.privacy import grammar
from service.privacy.mechanisms import MECHANISMS, DiscreteOsgt, Osgt
from service.privacy.mechanisms.declared import RDP
from service.privacy.partitions import LONGEST, MOST_NAMES, MOST_PARTITIONS
from service.privacy.plans import NODES


class _Made:
    """A type that is made when the program starts, in the place of one that mypy can follow."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return what pydantic makes of the type."""
        return handler.generate_schema(self._made)


def _positive(value: int | str) -> int | str:
    if isinstance(value, int) and value < 1:
        raise ValueError("expected a number above 0")
    return value


def _listed_or_counted(value: Any) -> Any:
    number = isinstance(value, int) and not isinstance(value, bool)
    if value is None or number or (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        return value
    raise ValueError("expected a list of texts, or a whole number")


StatedPartitions = TypeAliasType(
    "StatedPartitions",
    Annotated[
        list[str] | int | None,
        PlainValidator(_listed_or_counted),
        WithJsonSchema(
            {
                "anyOf": [
                    {
                        "type": "array",
                        "items": {"type": "string", "minLength": 1, "maxLength": LONGEST},
                        "minItems": 1,
                        "maxItems": MOST_NAMES,
                        "uniqueItems": True,
                    },
                    {"type": "integer", "minimum": 1, "maximum": MOST_PARTITIONS},
                    {"type": "null"},
                ],
                "examples": [["01", "02"], 3143],
            }
        ),
    ],
)
"""The partitions that something may be drawn for, or how many; what they mean is read with the plan."""

_TYPES: dict[type[grammar.Field], Any] = {
    grammar.TextLine: Label,
    grammar.TextLines: Tags,
    grammar.PartitionNames: StatedPartitions,
    grammar.Part: "Plan",
    grammar.Parts: Annotated[list["Plan"], Field(min_length=1)],
}


def _type(field: grammar.Field) -> Any:
    """Return the type of a field with the bounds that a schema can say; ``privacy.notation`` checks the others."""
    match field:
        case grammar.ExactNumber(whole_stays=True):
            return Annotated[WholeOrExact, AfterValidator(_positive)]
        case grammar.ExactNumber():
            return Exact
        case grammar.ExactNumbers(most=most):
            return Annotated[list[Exact], Field(min_length=1, max_length=most)]
        case grammar.WholeNumber(least=least, most=most):
            return Annotated[int, Field(strict=True, ge=least, le=most)]
        case grammar.InnerList(form=form, most=most):
            return Annotated[list[_model(form)], Field(min_length=1, max_length=most)]  # type: ignore[misc]
        case grammar.InnerLists(form=form, most=most):
            bounds = Field(min_length=1, max_length=most)
            return Annotated[list[Annotated[list[_model(form)], bounds]], bounds]  # type: ignore[misc]
        case grammar.Inner(form=form):
            return _model(form)
        case grammar.Type(value=value) | grammar.Constant(value=value):
            return Literal[value]
        case _:
            return _TYPES[type(field)]


def _member(field: grammar.Field) -> tuple[Any, Any]:
    """Return a field as pydantic takes it: its type, and its default with its description."""
    description = field.description or None
    if field.required:
        return _type(field), Field(description=description)
    if field.default is None and not isinstance(field, grammar.PartitionNames):
        return _type(field) | None, Field(None, description=description)
    return _type(field), Field(field.default, description=description)


@cache
def _model(form: grammar.DocumentForm) -> type[Strict]:
    members = {field.name: _member(field) for field in form.fields}
    return create_model(form.name, __base__=Strict, __module__=__name__, __doc__=form.about, **members)  # type: ignore[call-overload,no-any-return]


def _union(kinds: Iterable[type[grammar.PlanElement]]) -> Any:
    return Annotated[Union[tuple(_model(kind.form()) for kind in kinds)], Field(discriminator="type")]  # noqa: UP007


RdpCurve = Annotated[list[Any], _Made(_type(RDP))]
OffsetTails = Annotated[Any, _Made(_union([Osgt, DiscreteOsgt]))]
Mechanism = TypeAliasType("Mechanism", Annotated[Any, _Made(_union(MECHANISMS.values()))])
Plan = TypeAliasType("Plan", Annotated[Any, _Made(_union([*MECHANISMS.values(), *NODES.values()]))])
for _node in NODES.values():
    _model(_node.form()).model_rebuild()

NODE_TYPES = frozenset((*MECHANISMS, *NODES))
"""The names under which pydantic reports a place in the unions above."""
