"""Plans to try properties on: every node, every mechanism, small figures and awkward ones."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from service.privacy.fields import THRESHOLD
from service.privacy.grammar import ABOVE_0, AT_LEAST_0, Constant, Either, Field, WholeNumber
from service.privacy.laws.loss_laws import ListedLoss, LossMasses
from service.privacy.laws.noise_law import Masses
from service.privacy.mechanisms import MECHANISMS, Declaration, Declared, Discrete, Mechanism, NoiseTable
from service.privacy.plans import Choice, Group, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.walking import Neighbouring, children_with_pointers, with_parts
from tests.privacy.mechanisms.examples import examples

figures = st.one_of(
    st.sampled_from([Fraction(text) for text in ("0.1", "1", "2.5", "1/3", "7/5", "40")]),
    st.fractions(Fraction(1, 50), 50, max_denominator=97),
)
offsets = st.just(Fraction(0)) | figures
whole = st.integers(1, 4)
tags = st.lists(st.sampled_from(["age", "sex", "state"]), unique=True, max_size=2).map(lambda used: tuple(sorted(used)))


def declarations(losses: st.SearchStrategy[Fraction] = figures) -> st.SearchStrategy[Declaration]:
    """Pure, zCDP and RDP figures all at once, or listed losses, so that every notion is finite up to order 64."""
    figured = st.builds(
        Declaration,
        epsilon=losses,
        delta=st.sampled_from([Fraction(0), Fraction(1, 10**9), Fraction(1, 3 * 10**7)]),
        mu=losses,
        rho=losses,
        rdp=st.tuples(losses, losses).map(lambda pair: ((Fraction(2), pair[0]), (Fraction(64), pair[0] + pair[1]))),
    )
    return st.one_of(figured, st.builds(Declaration, pld=st.builds(_listed, losses)))


def _listed(loss: Fraction) -> ListedLoss:
    """A loss alike in both directions, which is 0 or at most so large."""
    masses = LossMasses(0, (Fraction(1, 2), Fraction(1, 2)))
    return ListedLoss(loss, masses, masses)


def mechanisms(neighbouring: Neighbouring) -> st.SearchStrategy[Mechanism]:
    """Any mechanism that has a meaning anywhere in a plan under the relation."""
    replaced = neighbouring is Neighbouring.REPLACE_ONE
    found = [_of_type(kind, replaced=replaced) for kind in MECHANISMS.values() if _fits(kind, replaced=replaced)]
    one_sided = declarations() if replaced else st.none()
    declared = st.builds(
        Declared, guarantee=declarations(), reference=st.just("a proof"), add_remove=one_sided, tags=tags
    )
    return st.one_of(*found, declared)


def responses() -> st.SearchStrategy[Mechanism]:
    """Mechanisms that have a meaning under replace_one and outside parallel and choice, as randomised response."""
    kinds = [kind for kind in MECHANISMS.values() if kind is not Declared and not _fits(kind, replaced=True)]
    return st.one_of([_of_type(kind, replaced=True) for kind in kinds])


def _fits(kind: type[Mechanism], *, replaced: bool) -> bool:
    return kind is not Declared and not any(examples(kind)[0].faults(replaced=replaced, divided=True))


def _of_type(kind: type[Mechanism], *, replaced: bool) -> st.SearchStrategy[Mechanism]:
    """Return mechanisms of a type, with the parameters that its grammar allows."""
    fields: dict[str, st.SearchStrategy[Any]]
    if kind is NoiseTable:
        fields = {"rows": st.lists(st.integers(1, 9), min_size=1, max_size=9).map(_table)}
    else:
        fields = {field.name: _values(field) for field in kind.FIELDS}
    if kind.ADDITIVE:
        fields |= {"cells": st.none() | whole, "cells_added": st.none() | whole if replaced else st.none()}
        fields["sensitivity"] = whole if issubclass(kind, Discrete) else figures
    if THRESHOLD in kind.AFTER:
        fields["threshold"] = st.none() | st.integers(1, 400)
    return st.builds(kind, tags=tags, **fields)


def _values(field: Field | Either) -> st.SearchStrategy[Any]:
    bound = field.parameter.bound if isinstance(field, Either) else getattr(field, "bound", None)
    if isinstance(field, Constant):
        return st.sampled_from([None, field.value])
    if isinstance(field, WholeNumber):
        return st.integers(field.least, field.least + 7)
    if bound in (ABOVE_0, AT_LEAST_0):
        return figures if bound is ABOVE_0 else offsets
    raise TypeError(f"expected values to try {field.name} on")


def _table(weights: list[int]) -> tuple[Masses]:
    """Few masses of which some are as far apart as any shift of these plans, so that every notion is finite."""
    values = [*range(18), *range(18, 18 * 19, 18)]
    masses = [weights[place % len(weights)] for place in range(len(values))]
    return (tuple((value - 9, Fraction(mass, sum(masses))) for value, mass in zip(values, masses, strict=True)),)


def plans(neighbouring: Neighbouring, leaves: int = 8) -> st.SearchStrategy[Plan]:
    """Plans without names."""
    return st.recursive(
        mechanisms(neighbouring), lambda inner: _nodes(st.lists(inner, min_size=1, max_size=4)), max_leaves=leaves
    )


def _nodes(parts: st.SearchStrategy[list[Plan]]) -> st.SearchStrategy[Plan]:
    some = parts.map(tuple)
    return st.one_of(
        st.builds(Sequence, parts=some, tags=tags),
        st.builds(Parallel, parts=some, max_degree=st.integers(1, 3), tags=tags),
        st.builds(Choice, parts=some, tags=tags),
        st.builds(
            lambda part, count, used: Repeat(part=part[0], count=count, tags=used), some, st.integers(1, 5), tags
        ),
        st.builds(lambda part, size, used: Group(part=part[0], size=size, tags=used), some, st.integers(1, 3), tags),
    )


def named(plan: Plan) -> Plan:
    """The plan as it is read: every mechanism with its path as a name."""
    return _rename(plan, "", lambda path: path or "/")


def _rename(plan: Plan, path: str, name: Callable[[str], str]) -> Plan:
    if isinstance(plan, Mechanism):
        return replace(plan, name=name(path))
    return with_parts(plan, [_rename(part, path + step, name) for step, part in children_with_pointers(plan)])
