"""Plans as JSON documents: reading, checking, and the normal form that identifies a price.

A document is what api.md calls PLAN, with every exact number as a string. Reading checks what a
plan means (positive parameters, alternatives, names); ``check_relation`` checks what depends on the
neighbouring relation.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from service.errors import Fault, InvalidInput
from service.privacy.mechanisms import (
    Declaration,
    Declared,
    DiscreteGaussian,
    DiscreteOsgt,
    Gaussian,
    Geometric,
    Laplace,
    Mechanism,
    Osgt,
    RandomizedResponse,
)
from service.privacy.numbers import exact_text, parse_exact
from service.privacy.plan import (
    Choice,
    Group,
    Neighbouring,
    Parallel,
    Plan,
    Repeat,
    Sequence,
    parts_of,
    pointer_to,
)

Document = Mapping[str, Any]
MAX_REPETITIONS = 10**12  # product of nested repeats
MAX_GROUP = 10**9  # product of nested groups
MAX_SENSITIVITY = 2**53  # in units of granularity


def read_plan(document: Document, pointer: str = "") -> Plan:
    """The plan that a document states; mechanisms without a name are named by their path.

    Raises:
        InvalidInput: with the JSON pointer (below ``pointer``) of each thing that has no meaning.
    """
    plan = _read(document, pointer, "", _Above())
    mechanisms = [(where, node) for where, node in walk(plan, pointer) if isinstance(node, Mechanism)]
    names = Counter(mechanism.name for _, mechanism in mechanisms)
    faults = [
        Fault(f"{where}/name", "expected a name that no other mechanism of the plan has")
        for where, mechanism in mechanisms
        if names[mechanism.name] > 1
    ]
    if faults:
        raise InvalidInput(faults)
    return plan


def walk(plan: Plan, pointer: str = "") -> Iterator[tuple[str, Plan]]:
    """Every node with its JSON pointer in the plan's document, parents first."""
    yield pointer, plan
    for number, part in enumerate(parts_of(plan)):
        yield from walk(part, pointer + pointer_to(plan, number))


@dataclass(frozen=True, slots=True)
class _Above:
    """The products of the ``repeat`` counts and the ``group`` sizes above a node."""

    repetitions: int = 1
    records: int = 1


def _read(document: Document, base: str, path: str, above: _Above) -> Plan:
    tags = tuple(sorted(set(document.get("tags") or ())))
    match document["type"]:
        case "repeat":
            count = document["count"]
            below = replace(above, repetitions=above.repetitions * count)
            if below.repetitions > MAX_REPETITIONS:
                raise InvalidInput.at(f"{base}{path}/count", "expected a product of nested repeats of at most 10^12")
            return Repeat(part=_read(document["part"], base, f"{path}/part", below), count=count, tags=tags)
        case "group":
            size = document["size"]
            below = replace(above, records=above.records * size)
            if below.records > MAX_GROUP:
                raise InvalidInput.at(f"{base}{path}/size", "expected a product of nested groups of at most 10^9")
            return Group(part=_read(document["part"], base, f"{path}/part", below), size=size, tags=tags)
        case "sequence" | "parallel" | "choice" as kind:
            parts = tuple(
                _read(part, base, f"{path}/parts/{number}", above) for number, part in enumerate(document["parts"])
            )
            if kind == "parallel":
                return Parallel(parts=parts, max_degree=document["max_degree"], tags=tags)
            return (Sequence if kind == "sequence" else Choice)(parts=parts, tags=tags)
        case _:
            mechanism = _read_mechanism(document, base + path)
            return replace(mechanism, name=document.get("name") or path or "/", tags=tags)


def _read_mechanism(document: Document, at: str) -> Mechanism:
    cells = {field: document[field] for field in ("cells", "cells_added") if document.get(field) is not None}
    match document["type"]:
        case "geometric":
            steps, unit = _lattice(document, at)
            scale = _inverse_pair(document, at, "scale", "epsilon", steps * unit) / unit
            return Geometric(scale=scale, sensitivity=steps, granularity=unit, **cells)
        case "discrete_gaussian":
            steps, unit = _lattice(document, at)
            variance = _inverse_pair(document, at, "sigma_squared", "rho", (steps * unit) ** 2 / 2) / unit**2
            return DiscreteGaussian(sigma_squared=variance, sensitivity=steps, granularity=unit, **cells)
        case "laplace":
            s = _positive(document, at, "sensitivity") if "sensitivity" in document else Fraction(1)
            return Laplace(scale=_inverse_pair(document, at, "scale", "epsilon", s), sensitivity=s, **cells)
        case "gaussian":
            s = _positive(document, at, "sensitivity") if "sensitivity" in document else Fraction(1)
            variance = _inverse_pair(document, at, "sigma_squared", "rho", s * s / 2)
            return Gaussian(sigma_squared=variance, sensitivity=s, **cells)
        case "osgt":
            s = _positive(document, at, "sensitivity") if "sensitivity" in document else Fraction(1)
            variance, m = _positive(document, at, "sigma_squared"), _not_negative(document, at, "m")
            return Osgt(sigma_squared=variance, m=m, sensitivity=s, **cells)
        case "discrete_osgt":
            steps, unit = _lattice(document, at)
            variance, m = _positive(document, at, "sigma_squared") / unit**2, _not_negative(document, at, "m") / unit
            return DiscreteOsgt(sigma_squared=variance, m=m, sensitivity=steps, granularity=unit, **cells)
        case "randomized_response":
            return RandomizedResponse(epsilon=_positive(document, at, "epsilon"), values=document.get("values", 2))
        case "declared":
            one_sided = document.get("add_remove")
            missing = [
                f for f in ("epsilon", "delta", "rho", "rdp") if document.get(f) and not (one_sided or document).get(f)
            ]
            if missing:
                raise InvalidInput.at(f"{at}/add_remove", f"expected the fields that are declared; missing: {missing}")
            return Declared(
                guarantee=read_declaration(document, at),
                reference=document["reference"],
                add_remove=None if one_sided is None else read_declaration(one_sided, f"{at}/add_remove"),
            )
        case _:
            raise InvalidInput.at(f"{at}/type", "expected the type of a mechanism or of a node")


def _lattice(document: Document, at: str) -> tuple[int, Fraction]:
    """The sensitivity of discrete noise in units of its granularity, and that in counts."""
    if document.get("granularity") is None:
        sensitivity = document.get("sensitivity", 1)
        if not isinstance(sensitivity, int):
            detail = "expected an integer of at most 2^53; other numbers need a granularity"
            raise InvalidInput.at(f"{at}/sensitivity", detail)
        return sensitivity, Fraction(1)
    unit = _positive(document, at, "granularity")
    moved = _positive(document, at, "sensitivity") / unit if "sensitivity" in document else 1 / unit
    if moved.denominator != 1 or moved > MAX_SENSITIVITY:
        detail = "expected a multiple of granularity, at most 2^53 times it; without one it is 1"
        raise InvalidInput.at(f"{at}/sensitivity", detail)
    return int(moved), unit


def _inverse_pair(document: Document, at: str, parameter: str, loss: str, product: Fraction) -> Fraction:
    """A noise parameter, given as itself or by the loss per cell that it causes: parameter = product/loss."""
    given = [field for field in (parameter, loss) if document.get(field) is not None]
    if len(given) != 1:
        raise InvalidInput.at(
            at, f"expected exactly one of {parameter} and {loss}, got {'both' if given else 'neither'}"
        )
    value = _positive(document, at, given[0])
    return value if given[0] == parameter else product / value


def _exact(document: Document, at: str, field: str) -> Fraction:
    try:
        return parse_exact(str(document[field]))
    except ValueError as error:
        raise InvalidInput.at(f"{at}/{field}", str(error)) from None


def _positive(document: Document, at: str, field: str) -> Fraction:
    value = _exact(document, at, field)
    if value <= 0:
        raise InvalidInput.at(f"{at}/{field}", "expected a number above 0")
    return value


def _not_negative(document: Document, at: str, field: str) -> Fraction:
    value = _exact(document, at, field)
    if value < 0:
        raise InvalidInput.at(f"{at}/{field}", "expected a number of at least 0")
    return value


def read_declaration(document: Document, at: str) -> Declaration:
    """A declared guarantee: at least one of epsilon, rho and rdp, none negative, delta below 1."""
    exact = {
        field: _exact(document, at, field) for field in ("epsilon", "rho", "delta") if document.get(field) is not None
    }
    for field, value in exact.items():
        if value < 0 or (field == "delta" and value >= 1):
            limits = "a number of at least 0" + (" and below 1" if field == "delta" else "")
            raise InvalidInput.at(f"{at}/{field}", f"expected {limits}")
    points = sorted(_read_point(point, f"{at}/rdp/{number}") for number, point in enumerate(document.get("rdp") or ()))
    if any(one == other for (one, _), (other, _) in pairwise(points)):
        raise InvalidInput.at(f"{at}/rdp", "expected each order once")
    if not points and "epsilon" not in exact and "rho" not in exact:
        raise InvalidInput.at(at, "expected at least one of epsilon, rho and rdp")
    return Declaration(
        epsilon=exact.get("epsilon"),
        delta=exact.get("delta", Fraction(0)),
        rho=exact.get("rho"),
        rdp=tuple(points),
    )


def _read_point(document: Document, at: str) -> tuple[Fraction, Fraction]:
    alpha = _exact(document, at, "alpha")
    if alpha <= 1:
        raise InvalidInput.at(f"{at}/alpha", "expected an order above 1")
    return alpha, _not_negative(document, at, "epsilon")


def check_relation(plan: Plan, neighbouring: Neighbouring, pointer: str = "") -> None:
    """Refuse what has no meaning under the neighbouring relation.

    Raises:
        InvalidInput: with one fault for each such mechanism.
    """
    faults: list[Fault] = []
    _check(plan, neighbouring, pointer, False, faults)
    if faults:
        raise InvalidInput(faults)


def _check(plan: Plan, neighbouring: Neighbouring, at: str, divided: bool, faults: list[Fault]) -> None:
    """``divided``: below a ``parallel`` or ``choice``, where a changed record can leave one part and enter another."""
    replaced = neighbouring is Neighbouring.REPLACE_ONE
    match plan:
        case Declared(add_remove=None) if replaced and divided:
            detail = (
                "expected add_remove: below parallel and choice, a changed record can leave one part and enter another"
            )
            faults.append(Fault(f"{at}/add_remove", detail))
        case Declared(add_remove=Declaration()) if not replaced:
            faults.append(Fault(f"{at}/add_remove", "expected none: the account's relation is add_remove already"))
        case RandomizedResponse() if not replaced:
            faults.append(Fault(f"{at}/type", "expected replace_one for randomized_response, got add_remove"))
        case RandomizedResponse() if divided:
            faults.append(Fault(f"{at}/type", "expected no randomized_response below parallel or choice"))
        case Mechanism(cells_added=int()) if not replaced:
            faults.append(Fault(f"{at}/cells_added", "expected none under add_remove; cells is what one record moves"))
    divided = divided or isinstance(plan, Parallel | Choice)
    for number, part in enumerate(parts_of(plan)):
        _check(part, neighbouring, at + pointer_to(plan, number), divided, faults)


def write_plan(plan: Plan) -> dict[str, Any]:
    """The document of a plan in normal form, with noise parameters as themselves; ``read_plan`` reads it back."""
    document: dict[str, Any] = {"type": _TYPES[type(plan)]}
    if isinstance(plan, Mechanism):
        if plan.name is not None:
            document["name"] = plan.name
        document |= _parameters(plan)
        document |= {f: getattr(plan, f) for f in ("cells", "cells_added") if getattr(plan, f) is not None}
    elif isinstance(plan, Repeat):
        document |= {"count": plan.count, "part": write_plan(plan.part)}
    elif isinstance(plan, Group):
        document |= {"size": plan.size, "part": write_plan(plan.part)}
    else:
        if isinstance(plan, Parallel):
            document["max_degree"] = plan.max_degree
        document["parts"] = [write_plan(part) for part in plan.parts]
    if plan.tags:
        document["tags"] = list(plan.tags)
    return document


_TYPES: dict[type, str] = {
    Geometric: "geometric",
    DiscreteGaussian: "discrete_gaussian",
    Laplace: "laplace",
    Gaussian: "gaussian",
    Osgt: "osgt",
    DiscreteOsgt: "discrete_osgt",
    RandomizedResponse: "randomized_response",
    Declared: "declared",
    Sequence: "sequence",
    Parallel: "parallel",
    Choice: "choice",
    Repeat: "repeat",
    Group: "group",
}


def _parameters(mechanism: Mechanism) -> dict[str, Any]:
    match mechanism:
        case Geometric(scale=scale, sensitivity=s, granularity=unit):
            return _noise("scale", scale * unit, "epsilon", s / scale) | _on_lattice(s, unit)
        case DiscreteGaussian(sigma_squared=variance, sensitivity=s, granularity=unit):
            return _noise("sigma_squared", variance * unit**2, "rho", s * s / (2 * variance)) | _on_lattice(s, unit)
        case Laplace(scale=scale, sensitivity=real):
            return _noise("scale", scale, "epsilon", real / scale) | {"sensitivity": exact_text(real)}
        case Gaussian(sigma_squared=variance, sensitivity=real):
            rho = real * real / (2 * variance)
            return _noise("sigma_squared", variance, "rho", rho) | {"sensitivity": exact_text(real)}
        case Osgt(sigma_squared=variance, m=m, sensitivity=real):
            return {"sigma_squared": exact_text(variance), "m": exact_text(m), "sensitivity": exact_text(real)}
        case DiscreteOsgt(sigma_squared=variance, m=m, sensitivity=s, granularity=unit):
            return {"sigma_squared": exact_text(variance * unit**2), "m": exact_text(m * unit)} | _on_lattice(s, unit)
        case RandomizedResponse(epsilon=epsilon, values=values):
            return {"epsilon": exact_text(epsilon), "values": values}
        case Declared(guarantee=guarantee, reference=reference, add_remove=one_sided):
            document = {"reference": reference} | _declaration(guarantee)
            return document if one_sided is None else document | {"add_remove": _declaration(one_sided)}
        case _:
            raise TypeError(f"no document for {type(mechanism).__name__}")


def _on_lattice(sensitivity: int, unit: Fraction) -> dict[str, Any]:
    if unit == 1:
        return {"sensitivity": sensitivity}
    return {"sensitivity": exact_text(sensitivity * unit), "granularity": exact_text(unit)}


def _noise(parameter: str, value: Fraction, loss: str, per_cell: Fraction) -> dict[str, str]:
    """The noise by its parameter, or by the loss it was given as where only that is within the limits of a number."""
    text = exact_text(value)
    try:
        parse_exact(text)
    except ValueError:
        return {loss: exact_text(per_cell)}
    return {parameter: text}


def _declaration(declaration: Declaration) -> dict[str, Any]:
    document: dict[str, Any] = {
        field: exact_text(value)
        for field, value in (("epsilon", declaration.epsilon), ("rho", declaration.rho), ("delta", declaration.delta))
        if value is not None
    }
    if declaration.rdp:
        document["rdp"] = [{"alpha": exact_text(a), "epsilon": exact_text(e)} for a, e in declaration.rdp]
    return document
