"""PLAN and MECHANISM of the contract as models; what they mean is read by ``privacy.notation``."""

from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema
from typing_extensions import TypeAliasType

from service.api.exact import Exact, Label, Positive, Strict, Tags, WholeOrExact
from service.errors import InvalidInput
from service.privacy.mechanisms import Mechanism as MechanismValue
from service.privacy.noise_law import NoiseLaw
from service.privacy.notation import MAX_GROUP, MAX_REPETITIONS, read_plan
from service.privacy.partitions import LONGEST, MOST, MOST_NAMES
from service.privacy.plan import Plan as PlanValue, condense, leaves, mechanisms_of


class Limits(NamedTuple):
    """The largest plan that is read."""

    nodes: int
    depth: int
    osgt: int


_USUAL = Limits(100_000, 32, 100)
plan_limits: ContextVar[Limits] = ContextVar("plan_limits", default=_USUAL)


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
                    {"type": "integer", "minimum": 1, "maximum": MOST},
                    {"type": "null"},
                ],
                "examples": [["01", "02"], 3143],
            }
        ),
    ],
)
"""The partitions that something may be drawn for, or how many; what they mean is read with the plan."""

DeclaredPartitions = Annotated[
    int | None,
    Field(
        description="How many partitions the plan declares, for which the mechanism may be drawn. Null: none are"
        " declared, and the ledger cannot tell whether those drawn are disjoint."
    ),
]


class _Node(Strict):
    tags: Tags | None = Field(None, description="What this reveals something about: an attribute, a geography.")


class _Mechanism(_Node):
    name: Label | None = Field(None, description="Unique in the plan; without one, the path is the name.")


class _Additive(_Mechanism):
    cells: Positive | None = Field(
        None, description="How many cells one neighbouring change can move: by default 1, under replace_one 2."
    )
    cells_added: Positive | None = Field(
        None,
        description="Under replace_one: how many cells adding or removing one record can move. By default half of"
        " cells, rounded up; more, to be stated, where a record can also be in no cell, or where records share cells.",
    )


class _Discrete(_Additive):
    partitions: StatedPartitions = Field(
        None,
        description="The partitions of the input that it may be drawn for, or in each repetition how many at the most:"
        " a draw of others is refused. They must be disjoint sets of records: the ledger counts one charge for all of"
        " them and relies on your promise. By default those of the nearest node above that declares some.",
    )
    sensitivity: Annotated[WholeOrExact, AfterValidator(_positive)] = Field(
        1, description="How far one record moves one cell, in counts: an integer, or a multiple of granularity."
    )
    granularity: Exact | None = Field(
        None, description="Where counts are not integers but multiples of this, in counts: noise is drawn on them."
    )


class Geometric(_Discrete):
    """Discrete Laplace noise; exactly one of scale and epsilon."""

    type: Literal["geometric"]
    scale: Exact | None = Field(None, description="b of the mass proportional to exp(-|x|/b), in counts.")
    epsilon: Exact | None = Field(None, description="Pure loss of one cell, in nats: scale = sensitivity/epsilon.")


class DiscreteGaussian(_Discrete):
    """Discrete Gaussian noise; exactly one of sigma_squared and rho."""

    type: Literal["discrete_gaussian"]
    sigma_squared: Exact | None = Field(None, description="Of the mass proportional to exp(-x²/(2 sigma²)).")
    rho: Exact | None = Field(None, description="zCDP loss of one cell, in nats: sigma² = sensitivity²/(2 rho).")


class Laplace(_Additive):
    """Continuous Laplace noise, accounted only; exactly one of scale and epsilon."""

    type: Literal["laplace"]
    scale: Exact | None = None
    epsilon: Exact | None = None
    sensitivity: Exact = "1"


class Gaussian(_Additive):
    """Continuous Gaussian noise, accounted only; exactly one of sigma_squared and rho."""

    type: Literal["gaussian"]
    sigma_squared: Exact | None = None
    rho: Exact | None = None
    sensitivity: Exact = "1"


class Osgt(_Additive):
    """Continuous noise with offset symmetric Gaussian tails, accounted only."""

    type: Literal["osgt"]
    sigma_squared: Exact = Field(description="Of the density proportional to exp(-y²/(2 sigma²) - |y| m/sigma²).")
    m: Exact = Field(description="The offset of the tails, at least 0, in the unit of the noise; 0 is the Gaussian.")
    sensitivity: Exact = "1"


class DiscreteOsgt(_Discrete):
    """Noise with offset symmetric Gaussian tails on the integers, between discrete Gaussian and geometric."""

    type: Literal["discrete_osgt"]
    sigma_squared: Exact = Field(description="Of the mass proportional to exp(-x²/(2 sigma²) - |x| m/sigma²).")
    m: Exact = Field(description="The offset of the tails, at least 0, in counts; 0 is the discrete Gaussian.")


class RandomizedResponse(_Mechanism):
    """k-ary randomised response, under replace_one only."""

    type: Literal["randomized_response"]
    epsilon: Exact
    values: Annotated[int, Field(strict=True, ge=2, le=2**53)] = 2


class RdpPoint(Strict):
    """A Rényi bound at one order."""

    alpha: Exact
    epsilon: Exact


class Declaration(Strict):
    """A guarantee proved elsewhere: at least one of epsilon, rho and rdp."""

    epsilon: Exact | None = None
    delta: Exact | None = None
    rho: Exact | None = None
    rdp: Annotated[list[RdpPoint], Field(min_length=1, max_length=1000)] | None = None


class Declared(_Mechanism, Declaration):
    """A mechanism known only by its guarantee."""

    type: Literal["declared"]
    reference: Label = Field(description="Why the guarantee holds.")
    add_remove: Declaration | None = Field(
        None,
        description="Below parallel and choice under replace_one: what holds when a record is only added or removed.",
    )


class _Composite(_Node):
    partitions: StatedPartitions = Field(
        None, description="Those of each mechanism below that is drawn and declares none by itself."
    )


Parts = Annotated[list["Plan"], Field(min_length=1)]


class Sequence(_Composite):
    """All parts, adaptively."""

    type: Literal["sequence"]
    parts: Parts


class Parallel(_Composite):
    """Parts on subsets of the input; any record is in at most max_degree of them."""

    type: Literal["parallel"]
    max_degree: Positive
    parts: Parts


class Choice(_Composite):
    """One of the parts, chosen by earlier outputs, for each partition by itself."""

    type: Literal["choice"]
    parts: Parts


class Repeat(_Composite):
    """The same part count times."""

    type: Literal["repeat"]
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_REPETITIONS)]
    part: "Plan"


class Group(_Composite):
    """The part when size records change together: its sensitivities times size."""

    type: Literal["group"]
    size: Annotated[int, Field(strict=True, ge=1, le=MAX_GROUP)]
    part: "Plan"


Mechanism = TypeAliasType(
    "Mechanism",
    Annotated[
        Geometric | DiscreteGaussian | DiscreteOsgt | Laplace | Gaussian | Osgt | RandomizedResponse | Declared,
        Field(discriminator="type"),
    ],
)
Plan = TypeAliasType(
    "Plan",
    Annotated[
        Geometric
        | DiscreteGaussian
        | DiscreteOsgt
        | Laplace
        | Gaussian
        | Osgt
        | RandomizedResponse
        | Declared
        | Sequence
        | Parallel
        | Choice
        | Repeat
        | Group,
        Field(discriminator="type"),
    ],
)
for _model in (Sequence, Parallel, Choice, Repeat, Group):
    _model.model_rebuild()

_NODES = (
    Geometric,
    DiscreteGaussian,
    DiscreteOsgt,
    Laplace,
    Gaussian,
    Osgt,
    RandomizedResponse,
    Declared,
    Sequence,
    Parallel,
    Choice,
    Repeat,
    Group,
)
NODE_TYPES = frozenset(get_args(node.model_fields["type"].annotation)[0] for node in _NODES)
"""The names under which pydantic reports a place in the unions above."""


def _small_enough(document: Any) -> Any:
    """Refuse a plan that is too large before anything recurses into it."""
    limits, level, nodes, depth, names = plan_limits.get(), [document], 0, 0, 0
    while level:
        nodes, depth, names = nodes + len(level), depth + 1, names + sum(map(_names, level))
        if nodes > limits.nodes or depth > limits.depth:
            raise ValueError(f"expected a plan of at most {limits.nodes} nodes and depth {limits.depth}")
        if names > MOST_NAMES:
            raise ValueError(f"expected at most {MOST_NAMES} partitions in all lists of a plan")
        level = [part for node in level for part in _children(node)]
    return document


def _names(node: Any) -> int:
    stated = node.get("partitions") if isinstance(node, dict) else None
    return len(stated) if isinstance(stated, list) else 0


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        parts = node.get("parts")
        yield from parts if isinstance(parts, list) else ()
        if "part" in node:
            yield node["part"]


BoundedPlan = Annotated[Plan, BeforeValidator(_small_enough)]
"""A plan within the configured size."""


def document_of(model: Strict) -> dict[str, Any]:
    """A plan or mechanism as it was stated, exact numbers as strings."""
    return model.model_dump(exclude_unset=True, exclude_none=True)


def plan_of(model: Any, pointer: str) -> PlanValue:
    """The value of a plan or mechanism model; faults are below ``pointer``.

    Raises:
        InvalidInput: it has no meaning, or takes too long to price.
    """
    return plan_of_document(document_of(model), pointer)


def plan_of_document(document: dict[str, Any], pointer: str) -> PlanValue:
    """The same, of what ``document_of`` has made already.

    Raises:
        InvalidInput: it has no meaning, or takes too long to price.
    """
    plan = read_plan(document, pointer)
    if not all(one.work().in_arrays for one in mechanisms_of(plan)):
        _check_osgt(plan, pointer)
    return plan


def _check_osgt(plan: PlanValue, pointer: str) -> None:
    """Each distinct one takes tens of milliseconds, and on an (epsilon, delta) account up to half a second."""
    most = plan_limits.get().osgt
    some = (one for one in leaves(condense(plan)) if not one.work().in_arrays)
    if len({replace(one, cells=None, cells_added=None) for one in some}) > most:
        detail = f"expected at most {most} osgt and discrete_osgt mechanisms of unlike noise or sensitivity"
        raise InvalidInput.at(pointer, detail)


def mechanism_of(model: Any, pointer: str) -> MechanismValue:
    """The value of a mechanism model; faults are below ``pointer``.

    Raises:
        InvalidInput: it has no meaning.
    """
    return next(mechanisms_of(plan_of(model, pointer)))


def declared_partitions(mechanism: MechanismValue) -> int | None:
    """How many partitions a mechanism may be drawn for; None where none are declared."""
    return None if mechanism.partitions is None else mechanism.partitions.most


def law_of(mechanism: MechanismValue, pointer: str) -> NoiseLaw:
    """The law of a mechanism's noise.

    Raises:
        InvalidInput: it is continuous or declared, which this service accounts for and never draws.
    """
    law = mechanism.noise_law()
    if law is None or not mechanism.DRAWN:
        raise InvalidInput.at(
            pointer,
            "expected a mechanism with integer noise: geometric, discrete_gaussian or discrete_osgt; others are"
            " only accounted",
        )
    return law
