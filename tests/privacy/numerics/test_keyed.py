"""Keys that no client can foresee: numbers by their text, once; and no memo of the service that hashes a number."""

import importlib
import inspect
import pkgutil
import typing
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

import service
from service.privacy.accounting import zcdp
from service.privacy.accounting.pricing import price
from service.privacy.accounting.privacy_filter import ORDERS
from service.privacy.mechanisms import Declaration, Geometric, Laplace
from service.privacy.numerics import keyed as keys
from service.privacy.numerics.keyed import FractionsKey, KeptResults, Keyed, ValuesKey, keyed, memoised
from service.privacy.plans import Choice, Plan, Sequence
from service.privacy.plans.walking import Neighbouring, condense

PRIME = 2**61 - 1
"""Python hashes numbers modulo it."""


def _colliding(number: int) -> list[int]:
    return [7 + k * PRIME for k in range(number)]


def test_numbers_that_python_takes_for_colliding_have_keys_of_their_own() -> None:
    whole = _colliding(1000)
    ratios = [Fraction(one, 3) for one in whole]
    assert len(set(map(hash, whole))) == len(set(map(hash, ratios))) == 1
    assert len({keyed(one) for one in (*whole, *ratios)}) == 2000
    assert len({hash(ValuesKey(Neighbouring.ADD_REMOVE, (one,))) for one in ratios}) == 1000
    assert len({hash(FractionsKey([one])) for one in ratios}) == 1000
    assert len({hash(Geometric(scale=one)) for one in ratios}) == 1000
    assert len({hash(Declaration(rdp=((one, Fraction(1)),))) for one in ratios}) == 1000


@given(st.integers() | st.fractions(), st.integers(1, 10**40))
def test_equal_values_have_equal_keys(value: int | Fraction, cells: int) -> None:
    number, same = Fraction(value), Fraction(value.numerator * 6, value.denominator * 6)
    assert keyed(number) == keyed(same)
    assert ValuesKey(number, (cells, "a")) == ValuesKey(same, (cells, "a"))
    one, other = Laplace(scale=number, cells=cells), Laplace(scale=same, cells=cells)
    assert one == other
    assert hash(one) == hash(other)
    assert hash(replace(one, sensitivity=Fraction(2))) == hash(replace(other, sensitivity=2))  # type: ignore[arg-type]


def test_a_whole_number_is_keyed_as_the_fraction_that_it_equals() -> None:
    assert keyed(7) == keyed(Fraction(7))
    assert keyed(-(2**4000)) == keyed(Fraction(-(2**4000)))
    assert ValuesKey(7) == ValuesKey(Fraction(7))
    assert ValuesKey(7) != (7,)


def test_a_nested_plan_is_hashed_once_at_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[int] = Counter()
    plain = keys._as_text

    def counting(value: object) -> object:
        asked[id(value)] += isinstance(value, Fraction)
        return plain(value)

    leaves = [Laplace(name=str(k), scale=Fraction(one, 3)) for k, one in enumerate(_colliding(20))]
    plan: Plan = Choice(parts=tuple(leaves))
    for _ in range(15):
        plan = Choice(parts=(Sequence(parts=(plan, Laplace(scale=Fraction(1)))), Laplace(scale=Fraction(2))))
    monkeypatch.setattr(keys, "_as_text", counting)
    condensed = condense(plan)
    for _ in range(5):
        price(condensed, Neighbouring.ADD_REMOVE, ORDERS[:2])
    assert all(asked[id(leaf.scale)] == 1 for leaf in leaves)


def test_a_memo_of_numbers_finds_what_it_knows() -> None:
    seen: list[Fraction] = []

    @memoised(maxsize=2)
    def doubled(value: Fraction, name: str) -> str:
        """Twice the value."""
        seen.append(value)
        return f"{name} {2 * value}"

    assert [doubled(Fraction(k, 7), "a") for k in (1, 2, 1, 3, 2)] == ["a 2/7", "a 4/7", "a 2/7", "a 6/7", "a 4/7"]
    assert seen == [Fraction(1, 7), Fraction(2, 7), Fraction(3, 7), Fraction(2, 7)]  # the least recent is forgotten
    assert doubled.__wrapped__(Fraction(1, 7), "a") == "a 2/7"
    assert doubled.__doc__ == "Twice the value."


def test_results_that_are_kept_by_their_digests_are_few() -> None:
    kept = KeptResults[int](2)
    for number, digest in enumerate("aba"):
        kept.put(digest, number)
    assert (kept.get("b"), kept.get("a")) == (1, 2)
    kept.put("c", 3)
    assert [kept.get(digest) for digest in "abc"] == [2, None, 3], "the one that was not used for longest is gone"


def test_the_suite_fails_what_hashes_a_fraction_in_the_service() -> None:
    source = "def look_up(number):\n    return {number: 1}"
    inside: dict[str, Any] = {"__name__": "service.somewhere"}
    exec(compile(source, "somewhere.py", "exec"), inside)
    with pytest.raises(AssertionError, match=r"service\.somewhere hashes a fraction in look_up"):
        inside["look_up"](Fraction(1, 3))
    assert {Fraction(1, 3): 1}[Fraction(2, 6)] == 1


_OWN = {  # what their memos are asked for is no client's choice
    "service.privacy.numerics.half_gaussian_sums._bernoulli_over_factorial": "an even number up to a precision",
    "service.privacy.laws.offset_tails._rough_moments": "mechanisms, which are hashed by text",
    "service.privacy.tight.contour.best_c": "eight compositions, which are equal only to themselves",
    "service.api.http.field_names._schema": "models of the contract, of which none comes from a request",
    "service.api.schemas.plan_models._model": "forms of the grammar, of which none comes from a request",
    "service.ledger.accounts.caps._digest": "weights, whose fractions are hashed by text",
    "service.ledger.accounts.lines.line_of": "databases, which are equal only to themselves",
    "service.ledger.accounts.lines._reading": "the number of accounts in a line",
    "service.ledger.accounts.lines._reading_caps": "the number of accounts in a line",
    "service.ledger.spending.spending_rows._mask": "the installation's secret, and the database's own numbers",
    "service.ledger.installation.signing.signer_of": "the installation's secret",
    "service.ledger.storage.clock.later": "moments, and durations of whole seconds",
}


def _memos() -> Iterator[tuple[str, Any]]:
    for found in pkgutil.walk_packages(service.__path__, "service."):
        if found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            if hasattr(value, "cache_info") and value.__module__ == found.name:
                yield f"{found.name}.{name}", value


def _hashed_by_text(kind: Any) -> bool:
    inner = typing.get_args(kind)
    if inner:
        return all(_hashed_by_text(one) for one in inner if one is not ...)
    return isinstance(kind, type) and issubclass(kind, (str, bytes, bool, Enum, Keyed, FractionsKey, type, type(None)))


def test_every_memo_is_keyed_by_text() -> None:
    found = dict(_memos())
    assert zcdp.mechanism_rho in found.values()
    for name, memo in found.items():
        hints = typing.get_type_hints(memo.__wrapped__)
        hints.pop("return", None)
        assert len(hints) == len(inspect.signature(memo.__wrapped__).parameters), name
        numbers = [parameter for parameter, kind in hints.items() if not _hashed_by_text(kind)]
        assert bool(numbers) == (name in _OWN), f"{name} is asked with {numbers}"
