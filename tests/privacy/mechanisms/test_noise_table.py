"""Noise tables answer as a mechanism must: by enumeration of all shifts, in both directions."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product
from math import exp, inf, log
from typing import Any

import pytest

from service.errors import InvalidInput
from service.noise import Keystream, add_noise, sample
from service.privacy.accounting.pricing import price
from service.privacy.accounting.privacy_filter import Budget, Definition, open_weights, shortfalls
from service.privacy.accounting.rdp import mechanism_tau
from service.privacy.accounting.totals import Totals, add_price
from service.privacy.mechanisms import Geometric, NoiseTable
from service.privacy.plans import Choice, Group, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import Neighbouring
from service.privacy.tight import TightProfile
from tests.noise.reference import chi_square_p
from tests.oracles.oracle import number
from tests.privacy.mechanisms.contract import DRAWS, ORDERS, MechanismContract
from tests.privacy.reference import mp, nats

Masses = dict[int, Fraction]
Row = tuple[tuple[int, Fraction], ...]
ADD = Neighbouring.ADD_REMOVE


def masses(*stated: str, first: int) -> tuple[Row]:
    return (tuple((first + place, Fraction(text)) for place, text in enumerate(stated) if text != "0"),)


def truncated(ratio: Fraction, most: int) -> tuple[Row]:
    weights = {x: ratio ** abs(x) for x in range(-most, most + 1)}
    return (tuple((x, weight / sum(weights.values())) for x, weight in weights.items()),)


SYMMETRIC = NoiseTable(name="a", rows=masses("1/16", "1/4", "3/8", "1/4", "1/16", first=-2))
GAPS = NoiseTable(
    name="b", rows=masses("1/32", "1/4", "1/16", "1/4", "1/16", "1/4", "0", "3/32", first=-3), sensitivity=2
)
SKEW = NoiseTable(
    name="c",
    rows=masses("1/9", "4/9", "1/3", "1/9", first=-1),
    granularity=Fraction(5),
    tags=("race",),
)
ROWS = NoiseTable(
    name="e",
    rows=(
        *masses("3/4", "1/4", first=0),
        *masses("1/4", "1/2", "1/4", first=-1),
        *masses("1/8", "1/8", "1/2", "1/8", "1/8", first=-2),
    ),
)
WIDE = NoiseTable(name="d", rows=truncated(Fraction(1, 2), 25), sensitivity=2)


def pairs(rows: tuple[Row, ...], reach: int) -> Iterator[tuple[Masses, Masses]]:
    """Yield the laws of the noisy counts of c and of c + j, in both directions, for all c with an own row and all j."""

    def noisy(count: int) -> Masses:
        return {count + x: p for x, p in rows[min(count, len(rows) - 1)]}

    for shift in range(1, reach + 1):
        for count in range(len(rows)):
            yield noisy(count), noisy(count + shift)
            yield noisy(count + shift), noisy(count)


def conditioned(p: Masses, q: Masses) -> list[tuple[Any, Any]]:
    both = p.keys() & q.keys()
    of_p, of_q = sum(p[x] for x in both), sum(q[x] for x in both)
    return [(number(p[x] / of_p), number(q[x] / of_q)) for x in both]


def renyi(both: list[tuple[Any, Any]], alpha: Any) -> Any:
    return mp.log(mp.fsum(p**alpha * q ** (1 - alpha) for p, q in both)) / (alpha - 1)


def slope(both: list[tuple[Any, Any]], alpha: Any) -> Any:
    return renyi(both, alpha) / alpha


def tau_of(alpha: Fraction, p: Masses, q: Masses) -> Any:
    return renyi(conditioned(p, q), number(alpha))


def stick(p: Masses, q: Masses, factor: Any) -> Any:
    """The hockey-stick divergence, with what is possible under p only."""
    return mp.fsum(max(number(mass) - factor * number(q.get(x, Fraction(0))), mp.mpf(0)) for x, mass in p.items())


class TestNoiseTable(MechanismContract):
    EXAMPLES = (SYMMETRIC, GAPS, SKEW, WIDE, ROWS)
    SCALED = False
    DELTA = Fraction(9, 25)

    def tau(self, mechanism: Any, alpha: Fraction, times: int = 1) -> Any:
        reach = mechanism.sensitivity * times
        return max(renyi(conditioned(*pair), number(alpha)) for pair in pairs(mechanism.rows, reach))

    def delta(self, mechanism: Any, epsilon: Fraction) -> Any:
        factor = mp.exp(number(epsilon))
        return max(stick(*pair, factor) for pair in pairs(mechanism.rows, mechanism.sensitivity))

    def test_drawn_values_have_their_law(self, mechanism: Any) -> None:
        for count, row in enumerate(mechanism.rows):
            true = count + 7 * (count == len(mechanism.rows) - 1)
            noisy = add_noise([true] * DRAWS, mechanism.noise_law(), Keystream(bytes(32)))
            seen = Counter((noisy - true).tolist())
            likely = [x for x, p in row if p * DRAWS >= 10]
            observed, expected = [seen[x] for x in likely], [float(p) * DRAWS for x, p in row if x in likely]
            assert seen.keys() <= dict(row).keys()
            if len(likely) < len(row):
                observed.append(DRAWS - sum(observed))
                expected.append(DRAWS - sum(expected))
            assert chi_square_p(observed, expected) > 1e-4

    def test_its_delta_is_the_largest_mass_that_one_side_alone_has(self, mechanism: Any) -> None:
        alone = (sum(p[x] for x in p.keys() - q.keys()) for p, q in pairs(mechanism.rows, mechanism.sensitivity))
        assert mechanism.delta().nats == max(alone)

    def test_rho_is_the_largest_quotient_to_a_thousand_millionth(self, mechanism: Any) -> None:
        found, alphas = nats(mechanism.rho()), [1 + mp.exp(mp.mpf(k) / 8) for k in range(-60, 60)]
        largest = mp.mpf(0)
        for pair in pairs(mechanism.rows, mechanism.sensitivity):
            both = conditioned(*pair)
            quotient = partial(slope, both)
            best = max(alphas, key=quotient)
            fine = [1 + (best - 1) * (1 + mp.mpf(k) / 2000) for k in range(-300, 301)]
            divergence = mp.fsum(p * mp.log(p / q) for p, q in both)
            largest = max(largest, divergence, *map(quotient, fine))
        assert largest <= number(found) <= largest * (1 + mp.mpf(10) ** -9)

    def test_pure_epsilon_is_the_largest_loss_of_the_conditioned_laws(self, mechanism: Any) -> None:
        found = number(nats(mechanism.pure_epsilon()))
        losses = (mp.log(p / q) for pair in pairs(mechanism.rows, mechanism.sensitivity) for p, q in conditioned(*pair))
        truth = max(losses)
        assert truth <= found <= truth * (1 + mp.mpf(10) ** -20)


def forwards(table: tuple[Row, ...], reach: int) -> list[tuple[Masses, Masses]]:
    return list(pairs(table, reach))[::2]


def backwards(table: tuple[Row, ...], reach: int) -> list[tuple[Masses, Masses]]:
    return list(pairs(table, reach))[1::2]


def farthest(table: tuple[Row, ...], reach: int) -> list[tuple[Masses, Masses]]:
    return list(pairs(table, reach))[-2:]


def raw(p: Masses, q: Masses) -> list[tuple[Any, Any]]:
    return [(number(p[x]), number(q[x])) for x in p.keys() & q.keys()]


@pytest.mark.parametrize("broken", [forwards, backwards, farthest])
def test_the_examples_tell_who_looks_at_one_direction_or_at_the_largest_shift_only(broken: Any) -> None:
    """A shorter shift can cost more, and either direction: in the profile, and at some order."""
    less = 1 - mp.mpf(10) ** -3
    missed = {"profile": False, "order": False}
    for mechanism in (GAPS, SKEW):
        every = list(pairs(mechanism.rows, mechanism.sensitivity))
        some: list[tuple[Masses, Masses]] = broken(mechanism.rows, mechanism.sensitivity)
        for e in (mp.mpf(k) / 10 for k in range(40)):
            missed["profile"] |= max(stick(*one, mp.exp(e)) for one in some) < less * max(
                stick(*one, mp.exp(e)) for one in every
            )
        for alpha in map(number, ORDERS):
            missed["order"] |= max(renyi(conditioned(*one), alpha) for one in some) < less * max(
                renyi(conditioned(*one), alpha) for one in every
            )
    assert all(missed.values())


def test_the_examples_tell_who_does_not_renormalise() -> None:
    """Laws that are not renormalised sum to less than 1, and so seem to lose less."""
    for alpha in ORDERS:
        missed = max(renyi(raw(*pair), number(alpha)) for pair in pairs(SYMMETRIC.rows, 1))
        assert missed < number(nats(mechanism_tau(SYMMETRIC, alpha))) * (1 - mp.mpf(10) ** -3)


def test_the_examples_tell_who_forgets_the_supports() -> None:
    for mechanism in (SYMMETRIC, GAPS, SKEW):
        within = max(
            mp.fsum(max(p - q, mp.mpf(0)) for p, q in raw(*pair))
            for pair in pairs(mechanism.rows, mechanism.sensitivity)
        )
        (found,) = deltas(replace(mechanism, cells=1), ADD, ("0",))
        assert found > within + number(nats(mechanism.delta())) / 4


Step = tuple[tuple[float, float], ...]


def steps(table: tuple[Row, ...], reach: int) -> list[Step]:
    """The losses of each shift in each direction under the first law, each with its probability."""
    return [tuple((log(p[x] / q[x]) if x in q else inf, float(p[x])) for x in p) for p, q in pairs(table, reach)]


def worst(turns: list[list[Step]], epsilon: float) -> float:
    """The largest delta of an adversary who takes one step in each turn after the losses of the earlier turns."""
    if not turns:
        return max(0.0, -(exp(epsilon) - 1)) if epsilon > -inf else 1.0
    return max(sum(p * worst(turns[1:], epsilon - loss) for loss, p in step) for step in turns[0])


def deltas(plan: Plan, neighbouring: Neighbouring, epsilons: tuple[str, ...]) -> list[float]:
    profile = TightProfile.of(plan, neighbouring)
    assert profile is not None
    bounds = [profile.delta(Fraction(epsilon)) for epsilon in epsilons]
    return [float(nats(bound.loss)) for bound in bounds if bound is not None]


EPSILONS = ("0", "0.3", "1", "1.7", "2.5")


@pytest.mark.parametrize("table", [SYMMETRIC, GAPS, SKEW, ROWS], ids=lambda one: one.name)
@pytest.mark.parametrize("turns", [2, 3])
def test_several_tables_are_the_worst_of_all_shifts_chosen_after_earlier_outputs(table: NoiseTable, turns: int) -> None:
    alone = steps(table.rows, table.sensitivity)
    truth = [worst([alone] * turns, float(epsilon)) for epsilon in EPSILONS]
    for found, true in zip(deltas(Repeat(part=table, count=turns), ADD, EPSILONS), truth, strict=True):
        assert true * (1 - 1e-9) <= found <= true * (1 + 1e-5)


def test_a_replaced_record_moves_two_cells_in_either_direction() -> None:
    alone = steps(SKEW.rows, 1)
    for found, epsilon in zip(deltas(SKEW, Neighbouring.REPLACE_ONE, EPSILONS), EPSILONS, strict=True):
        assert found >= worst([alone, alone], float(epsilon)) * (1 - 1e-9)


@pytest.mark.parametrize("table", [SYMMETRIC, GAPS, SKEW, WIDE, ROWS], ids=lambda one: one.name)
def test_a_group_is_above_all_ways_in_which_its_records_share_cells(table: NoiseTable) -> None:
    """Three records in one cell, two and one, or one in each of three: for every notion that has a figure."""
    together, _ = table.grouped(3)
    ways: list[tuple[int, ...]] = [(3,), (2, 1), (1, 1, 1)]
    law = table.rows

    def most(of: Callable[[Masses, Masses], Any], records: int) -> Any:
        return max(of(*pair) for pair in pairs(law, records * table.sensitivity))

    for way in ways:
        for alpha in ORDERS:
            each = [most(partial(tau_of, alpha), one) for one in way]
            assert number(nats(mechanism_tau(together, alpha))) >= sum(each) * (1 - mp.mpf(10) ** -12)
        lost = [most(lambda p, q: sum(p[x] for x in p.keys() - q.keys()), one) for one in way]
        assert nats(together.delta()) >= sum(lost)
    if isinstance(together, NoiseTable) and together.loss_law() is not None and len(law[0]) < 10:
        assert table.is_log_concave
        found = deltas(Group(part=table, size=3), ADD, EPSILONS)
        for way, (epsilon, bound) in product(ways, zip(EPSILONS, found, strict=True)):
            turns = [steps(law, one * table.sensitivity) for one in way]
            assert bound >= worst(turns, float(epsilon)) * (1 - 1e-9)


def test_a_shift_beyond_all_values_loses_everything() -> None:
    for lost in (SYMMETRIC.grouped(5)[0], NoiseTable(rows=(((0, Fraction(1)),),)), replace(SKEW, sensitivity=10**9)):
        assert lost.delta().nats is not None
        assert nats(lost.delta()) >= 1
        assert lost.pure_epsilon().nats is lost.rho().nats is mechanism_tau(lost, Fraction(2)).nats is None
        assert deltas(replace(lost, cells=1), ADD, ("0", "30")) == [1, 1]


def test_a_group_that_takes_too_long_is_taken_as_lost() -> None:
    long = NoiseTable(rows=truncated(Fraction(99, 100), 250))
    assert nats(long.grouped(2)[0].delta()) < 1
    assert nats(long.grouped(40)[0].delta()) == 40


@pytest.mark.parametrize("definition", list(Definition))
def test_a_budget_without_room_for_its_delta_refuses_it(definition: Definition) -> None:
    for room in (Fraction(1, 16), Fraction(1, 17)):
        budget = Budget(
            definition=definition,
            cap=Fraction(10),
            delta=room + Fraction(1, 100) if definition is Definition.APPROXIMATE else Fraction(0),
            declared_delta=room,
            alpha=Fraction(3) if definition is Definition.RDP else None,
        )
        weights = open_weights(budget)
        after = add_price(Totals(), price(SYMMETRIC, ADD, weights.orders))
        found = [one.cap for one in shortfalls(budget, weights, Totals(), after)]
        assert found == ([] if room == Fraction(1, 16) else [budget.delta_cap])


HALVES = [{"value": -1, "mass": "1/2"}, {"value": 1, "mass": "1/2"}]


@pytest.mark.parametrize(
    ("rows", "pointer", "detail"),
    [
        ([{"value": 0, "mass": "1/2"}, {"value": 1, "mass": "1/3"}], "/masses", "add up to 1, got 5/6"),
        ([{"value": 0, "mass": "1"}, {"value": 1, "mass": "1e-30"}], "/masses", "add up to 1, got about 1 + 1e-30"),
        ([*HALVES, {"value": 1, "mass": "1/2"}], "/masses/2/value", "each value once, got 1 again"),
        ([*HALVES, {"value": 2, "mass": "-1/2"}], "/masses/2/mass", "a number above 0"),
        ([*HALVES, {"value": 2, "mass": "0"}], "/masses/2/mass", "a number above 0"),
        ([*HALVES, {"value": 2, "mass": "NaN"}], "/masses/2/mass", "a number, a decimal string"),
        (
            [{"value": k, "mass": f"1/{(1 << 900) + 2 * k + 1}"} for k in range(2)],
            "/masses",
            "a common denominator of at most 1024 bits",
        ),
    ],
)
def test_tables_that_are_none_are_refused(rows: list[dict[str, Any]], pointer: str, detail: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_plan({"type": "noise_table", "masses": rows})
    (fault,) = refused.value.faults
    assert fault.pointer == pointer
    assert fault.detail.startswith("expected ")
    assert detail in fault.detail


def test_a_table_whose_shifts_take_too_long_is_refused() -> None:
    rows = [{"value": value, "mass": "1/512"} for value in range(512)]
    assert isinstance(read_plan({"type": "noise_table", "masses": rows, "sensitivity": 2}), NoiseTable)
    with pytest.raises(InvalidInput) as refused:
        read_plan({"type": "noise_table", "masses": rows, "sensitivity": 3})
    assert [one.pointer for one in refused.value.faults] == ["/sensitivity"]


def test_rows_are_refused_where_they_are_beside_masses_or_no_laws() -> None:
    halves: Any = {"masses": HALVES}
    for document, pointer in (
        ({"masses": HALVES, "rows": [halves]}, ""),
        ({}, ""),
        ({"rows": [halves, {"masses": HALVES[:1]}]}, "/rows/1/masses"),
        ({"rows": [halves, {"masses": [{"value": 0, "mass": "2"}]}]}, "/rows/1/masses"),
    ):
        with pytest.raises(InvalidInput) as refused:
            read_plan({"type": "noise_table"} | document)
        assert [one.pointer for one in refused.value.faults] == [pointer]
    assert read_plan({"type": "noise_table", "rows": [halves]}) == read_plan({"type": "noise_table", "masses": HALVES})


def test_only_neighbouring_rows_are_compared_with_the_shift_of_their_counts() -> None:
    """A count that is never changed reveals all where the next one always is, and nothing where both are alike."""
    kept, moved = ((0, Fraction(1)),), ((-1, Fraction(1, 2)), (0, Fraction(1, 2)))
    assert nats(NoiseTable(rows=(kept, ((-1, Fraction(1)),), ((-2, Fraction(1)),))).delta()) == 1  # 0, 0, 0, 1, 2, ...
    assert nats(NoiseTable(rows=(kept, moved)).delta()) == Fraction(1, 2)
    same = tuple(((-count, Fraction(1, 2)), (1 - count, Fraction(1, 2))) for count in range(3))  # always 0 or 1
    last = ((-3, Fraction(1, 2)), (-2, Fraction(1, 2)))
    assert nats(NoiseTable(rows=(*same, last)).delta()) == Fraction(1, 2)  # 3 and 4 have the last row
    assert NoiseTable(rows=(*same, last), sensitivity=2).pure_epsilon().nats is None


def test_the_noise_of_a_count_is_that_of_its_row_and_negative_counts_have_none() -> None:
    rows = tuple(((count * 10, Fraction(1)),) for count in range(4))
    law, counts = NoiseTable(rows=rows).noise_law(), [3, 0, 2, 1, 2**62, 0, 4]
    noisy = add_noise(counts, law, Keystream(bytes(32)))
    assert (noisy - counts).tolist() == [30, 0, 20, 10, 30, 0, 30]
    with pytest.raises(
        ValueError, match=r"^expected every count to be at least 0: the rows of the table are for counts"
    ):
        add_noise([3, -5], law, Keystream(bytes(32)))
    with pytest.raises(ValueError, match=r"^expected counts"):
        sample(law, 1, Keystream(bytes(32)))


RUNGS: list[Step] = [((0.5, 1 / (1 + exp(-0.5))), (-0.5, 1 / (1 + exp(0.5))))]
GEOMETRIC = Geometric(scale=Fraction(2))


@pytest.mark.parametrize("table", [SYMMETRIC, GAPS, SKEW, ROWS], ids=lambda one: one.name)
def test_beside_other_mechanisms_and_below_nodes_it_is_above_every_adversary(table: NoiseTable) -> None:
    alone, skew = steps(table.rows, table.sensitivity), steps(SKEW.rows, 1)
    ways: list[tuple[Plan, list[list[list[Step]]]]] = [
        (Sequence(parts=(table, GEOMETRIC)), [[alone, RUNGS], [RUNGS, alone]]),
        (Sequence(parts=(table, SKEW)), [[alone, skew], [skew, alone]]),
        (Repeat(part=Choice(parts=(table, SKEW, GEOMETRIC)), count=2), [[alone + skew + RUNGS] * 2]),
        (
            Parallel(parts=(table, SKEW, GEOMETRIC), max_degree=2),
            [[alone, skew], [skew, alone], [alone, RUNGS], [RUNGS, alone], [skew, RUNGS], [RUNGS, skew]],
        ),
    ]
    for plan, orders in ways:
        for found, epsilon in zip(deltas(plan, ADD, EPSILONS), EPSILONS, strict=True):
            assert found >= max(worst(turns, float(epsilon)) for turns in orders) * (1 - 1e-9)


def test_the_profile_of_one_cell_is_exact_where_a_third_shift_is_above_the_crossing_of_two() -> None:
    table = NoiseTable(rows=masses("2/5", "3/20", "2/5", "1/20", first=-3), sensitivity=2)
    for epsilon in ("0.5", "0.6", "0.7", "0.8"):
        (found,) = deltas(table, ADD, (epsilon,))
        truth = max(stick(*pair, mp.exp(number(Fraction(epsilon)))) for pair in pairs(table.rows, 2))
        assert truth <= found <= truth * (1 + mp.mpf(10) ** -9)


def test_tables_without_a_finite_loss_and_with_odds_beyond_the_doubles_are_answered() -> None:
    even = NoiseTable(rows=masses("1/2", "1/2", first=0))
    assert even.pure_epsilon().nats == even.rho().nats == mechanism_tau(even, Fraction(2)).nats == 0
    assert deltas(Repeat(part=even, count=2), ADD, ("0", "1")) == pytest.approx([0.75, 0.75])
    assert deltas(Repeat(part=even, count=70), ADD, ("0",)) == [1]
    rare = Fraction(1, 2**1020)
    steep = NoiseTable(rows=(((0, rare), (1, 1 - 3 * rare), (2, 2 * rare)),))
    assert nats(steep.pure_epsilon()) > 700
    for count in (1, 3):
        assert TightProfile.of(Repeat(part=steep, count=count), ADD) is None  # losses of more than 600 nats
