"""Plans as objects: one frozen class for each mechanism and node, with the names of the service's JSON.

Exact numbers are given as text, integers, fractions or decimals and kept as text; floats are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, Literal

from privacy_budget_ledger.exact import Exact, exact_text

_EXACT = frozenset(
    (
        "alpha",
        "at_least",
        "by",
        "delta",
        "epsilon",
        "granularity",
        "m",
        "mass",
        "mu",
        "query_scale",
        "rho",
        "scale",
        "sensitivity",
        "sigma_squared",
        "threshold_scale",
        "declared_delta",
        "infinity_mass",
        "discretization_interval",
    )
)
Partitions = tuple[str, ...] | int


class Document:
    """A value with a JSON document: its exact numbers become text when it is made."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None:
                continue
            if name in _EXACT:
                object.__setattr__(self, name, exact_text(value))
            elif isinstance(value, list | tuple):
                object.__setattr__(self, name, _frozen(value))

    def document(self) -> dict[str, Any]:
        """Return the JSON document, without the fields that are not stated."""
        stated = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: _json(name, value) for name, value in stated.items() if value not in (None, ())}


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _json(name: str, value: Any) -> Any:
    if isinstance(value, Document):
        return value.document()
    if isinstance(value, tuple):
        return [_json(name, one) for one in value]
    whole = name in ("by", "sensitivity") and Fraction(value).denominator == 1
    return int(value) if whole else value  # integer noise takes a distance that is a JSON integer


@dataclass(frozen=True)
class Plan(Document):
    """A mechanism or a node of a plan."""

    TYPE: ClassVar[str]
    ONE_OF: ClassVar[tuple[str, ...]] = ()  # fields of which exactly one is stated

    def __post_init__(self) -> None:
        """Require exactly one of the fields that state the scale of the noise.

        Raises:
            ValueError: none or several are stated.
        """
        super().__post_init__()
        stated = [name for name in self.ONE_OF if getattr(self, name) is not None]
        if self.ONE_OF and len(stated) != 1:
            got = " and ".join(stated) or "none"
            raise ValueError(f"{type(self).__name__}: expected exactly one of {' and '.join(self.ONE_OF)}, got {got}")

    def document(self) -> dict[str, Any]:
        """Return the JSON document, without the fields that are not stated."""
        return {"type": self.TYPE, **super().document()}


@dataclass(frozen=True, kw_only=True)
class Mechanism(Plan):
    """A mechanism.

    Attributes:
        name: unique in the plan.
        tags: the subjects about which it reveals something.
        reads: the promise that it reads nothing on which an account has a cap.
    """

    name: str | None = None
    tags: tuple[str, ...] = ()
    reads: Literal["nothing capped"] | None = None


@dataclass(frozen=True, kw_only=True)
class MovedCells(Document):
    """Cells that one record moves by the same distance."""

    by: Exact
    cells: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Additive(Mechanism):
    cells: int | None = None
    cells_added: int | None = None
    cells_replaced: int | None = None
    sensitivity: Exact | None = None


@dataclass(frozen=True, kw_only=True)
class Threshold(Document):
    """Suppression: of the keys that the data contain, those whose noisy count is ``at_least`` this are published."""

    at_least: Exact


@dataclass(frozen=True, kw_only=True)
class _Formula(_Additive):
    moves: tuple[tuple[MovedCells, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Suppressed(_Formula):
    threshold: Threshold | None = None


@dataclass(frozen=True, kw_only=True)
class _Drawn(_Additive):
    partitions: Partitions | None = None
    granularity: Exact | None = None


@dataclass(frozen=True, kw_only=True)
class Geometric(_Drawn, _Suppressed):
    """Two-sided geometric noise: exactly one of ``scale`` and ``epsilon``."""

    TYPE = "geometric"
    ONE_OF = ("scale", "epsilon")
    scale: Exact | None = None
    epsilon: Exact | None = None


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian(_Drawn, _Suppressed):
    """Discrete Gaussian noise: exactly one of ``sigma_squared`` and ``rho``."""

    TYPE = "discrete_gaussian"
    ONE_OF = ("sigma_squared", "rho")
    sigma_squared: Exact | None = None
    rho: Exact | None = None


@dataclass(frozen=True, kw_only=True)
class DiscreteOsgt(_Drawn, _Suppressed):
    """Discrete Gaussian noise with offset tails."""

    TYPE = "discrete_osgt"
    sigma_squared: Exact
    m: Exact


@dataclass(frozen=True, kw_only=True)
class NoiseMass(Document):
    """A value of the noise, a whole number of granularities, and its probability."""

    value: int
    mass: Exact


@dataclass(frozen=True, kw_only=True)
class NoiseRow(Document):
    """The noise of one true count."""

    masses: tuple[NoiseMass, ...]


@dataclass(frozen=True, kw_only=True)
class NoiseTable(_Drawn):
    """Integer noise with any probabilities: one law (``masses``), or one for each true count from 0 on (``rows``)."""

    TYPE = "noise_table"
    ONE_OF = ("masses", "rows")
    masses: tuple[NoiseMass, ...] | None = None
    rows: tuple[NoiseRow, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Laplace(_Formula):
    """Continuous Laplace noise, accounted and never drawn: exactly one of ``scale`` and ``epsilon``."""

    TYPE = "laplace"
    ONE_OF = ("scale", "epsilon")
    scale: Exact | None = None
    epsilon: Exact | None = None


@dataclass(frozen=True, kw_only=True)
class Gaussian(_Formula):
    """Continuous Gaussian noise, accounted and never drawn: exactly one of ``sigma_squared`` and ``rho``."""

    TYPE = "gaussian"
    ONE_OF = ("sigma_squared", "rho")
    sigma_squared: Exact | None = None
    rho: Exact | None = None


@dataclass(frozen=True, kw_only=True)
class Osgt(_Formula):
    """Continuous Gaussian noise with offset tails, accounted and never drawn."""

    TYPE = "osgt"
    sigma_squared: Exact
    m: Exact


@dataclass(frozen=True, kw_only=True)
class RandomizedResponse(Mechanism):
    """Randomised response among ``values`` values, under replace_one only."""

    TYPE = "randomized_response"
    epsilon: Exact
    values: int | None = None


@dataclass(frozen=True, kw_only=True)
class AboveThreshold(Mechanism):
    """The sparse vector technique: which of many answers are above a threshold."""

    TYPE = "above_threshold"
    threshold_scale: Exact
    query_scale: Exact
    positives: int | None = None
    answers: Literal["monotone"] | None = None
    sensitivity: Exact | None = None


@dataclass(frozen=True, kw_only=True)
class Exponential(Mechanism):
    """The exponential mechanism, whose loss has the range ``epsilon``; ``scores`` may be ``monotone``."""

    TYPE = "exponential"
    epsilon: Exact
    sensitivity: Exact | None = None
    scores: Literal["monotone"] | None = None


@dataclass(frozen=True, kw_only=True)
class RdpPoint(Document):
    """A Rényi bound at one order."""

    alpha: Exact
    epsilon: Exact


@dataclass(frozen=True, kw_only=True)
class LossProbabilities(Document):
    """Probabilities of the losses (``min_key`` + i) times ``discretization_interval``, which were rounded up."""

    min_key: int
    values: tuple[Exact, ...]
    infinity_mass: Exact | None = None
    discretization_interval: Exact

    def __post_init__(self) -> None:
        """Keep the probabilities as text."""
        super().__post_init__()
        object.__setattr__(self, "values", tuple(map(exact_text, self.values)))


@dataclass(frozen=True, kw_only=True)
class LossDistribution(Document):
    """A privacy loss distribution of one direction."""

    pessimistic_pmf: LossProbabilities


@dataclass(frozen=True, kw_only=True)
class LossDistributions(Document):
    """Privacy loss distributions: either ``symmetric``, or both ``remove`` and ``add``."""

    symmetric: LossDistribution | None = None
    remove: LossDistribution | None = None
    add: LossDistribution | None = None


@dataclass(frozen=True, kw_only=True)
class Declaration(Document):
    """A guarantee proved elsewhere: at least one of ``epsilon``, ``mu``, ``rho`` and ``rdp``, each beside ``delta``.

    ``pld`` is stated alone.
    """

    epsilon: Exact | None = None
    delta: Exact | None = None
    mu: Exact | None = None
    rho: Exact | None = None
    rdp: tuple[RdpPoint, ...] = ()
    pld: LossDistributions | None = None


@dataclass(frozen=True, kw_only=True)
class Declared(Mechanism):
    """A mechanism known only by a guarantee that was proved elsewhere.

    Attributes:
        reference: the reason why the guarantee holds.
        add_remove: below parallel and choice under replace_one, the guarantee for a record that is added or removed.
    """

    TYPE = "declared"
    reference: str
    epsilon: Exact | None = None
    delta: Exact | None = None
    mu: Exact | None = None
    rho: Exact | None = None
    rdp: tuple[RdpPoint, ...] = ()
    pld: LossDistributions | None = None
    add_remove: Declaration | None = None


@dataclass(frozen=True, kw_only=True)
class Node(Plan):
    """A node: its ``tags``, ``reads`` and ``partitions`` hold for all mechanisms below."""

    tags: tuple[str, ...] = ()
    reads: Literal["nothing capped"] | None = None
    partitions: Partitions | None = None


@dataclass(frozen=True, kw_only=True)
class Sequence(Node):
    """All parts, each of which may be chosen after the outputs of the earlier ones."""

    TYPE = "sequence"
    parts: tuple[Plan, ...]


@dataclass(frozen=True, kw_only=True)
class Parallel(Node):
    """Parts on subsets of the records; each record is in at most ``max_degree`` of them."""

    TYPE = "parallel"
    max_degree: int
    parts: tuple[Plan, ...]


@dataclass(frozen=True, kw_only=True)
class Choice(Node):
    """One of the parts, chosen by earlier outputs."""

    TYPE = "choice"
    parts: tuple[Plan, ...]


@dataclass(frozen=True, kw_only=True)
class Repeat(Node):
    """One part, ``count`` times."""

    TYPE = "repeat"
    count: int
    part: Plan


@dataclass(frozen=True, kw_only=True)
class Group(Node):
    """A part whose guarantee holds for ``size`` records that change together."""

    TYPE = "group"
    size: int
    part: Plan


def sequence(*parts: Plan, **node: Any) -> Sequence:
    """Return a sequence of parts; ``node`` has tags, reads and partitions."""
    return Sequence(parts=parts, **node)


def parallel(*parts: Plan, max_degree: int, **node: Any) -> Parallel:
    """Return parts of which each record is in at most ``max_degree``; ``node`` has tags, reads and partitions."""
    return Parallel(parts=parts, max_degree=max_degree, **node)


def choice(*parts: Plan, **node: Any) -> Choice:
    """Return a choice of one part; ``node`` has tags, reads and partitions."""
    return Choice(parts=parts, **node)


def repeat(count: int, part: Plan, **node: Any) -> Repeat:
    """Return a part ``count`` times; ``node`` has tags, reads and partitions."""
    return Repeat(count=count, part=part, **node)


def group(size: int, part: Plan, **node: Any) -> Group:
    """Return a part for ``size`` records that change together; ``node`` has tags, reads and partitions."""
    return Group(size=size, part=part, **node)


MECHANISMS: tuple[type[Mechanism], ...] = (
    *(Geometric, DiscreteGaussian, DiscreteOsgt, NoiseTable, Laplace, Gaussian, Osgt),
    *(RandomizedResponse, Exponential, AboveThreshold, Declared),
)
NODES: tuple[type[Node], ...] = (Sequence, Parallel, Choice, Repeat, Group)
_BY_TYPE: dict[str, type[Plan]] = {kind.TYPE: kind for kind in (*MECHANISMS, *NODES)}


def read_plan(document: Mapping[str, Any]) -> Plan:
    """Return the plan of a JSON document, as the service writes it.

    Raises:
        ValueError: the document has a type or a field that this version of the package does not know.
    """
    try:
        stated = {name: _value(name, value) for name, value in document.items() if name != "type" and value is not None}
        return _BY_TYPE[document["type"]](**stated)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"expected a plan of a known type with its fields: {error}") from None


def _value(name: str, value: Any) -> Any:
    match name:
        case "parts":
            return tuple(map(read_plan, value))
        case "part":
            return read_plan(value)
        case "masses":
            return tuple(NoiseMass(**mass) for mass in value)
        case "rows":
            return tuple(NoiseRow(masses=_value("masses", row["masses"])) for row in value)
        case "rdp":
            return tuple(RdpPoint(**point) for point in value)
        case "moves":
            return tuple(tuple(MovedCells(**moved) for moved in alternative) for alternative in value)
        case "pld":
            return LossDistributions(
                **{
                    key: LossDistribution(pessimistic_pmf=LossProbabilities(**one["pessimistic_pmf"]))
                    for key, one in value.items()
                    if one is not None
                }
            )
        case "threshold":
            return Threshold(**value)
        case "add_remove":
            return Declaration(**{key: _value(key, one) for key, one in value.items()})
        case _:
            return tuple(value) if isinstance(value, list) else value
