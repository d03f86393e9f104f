"""The suite that every mechanism inherits: its answers against sums and quadrature of its law.

A subclass gives examples and, for each, what one cell moved by ``times`` sensitivities loses.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from service.noise import Keystream, sample
from service.privacy.accounting.rdp import mechanism_tau
from service.privacy.accounting.zcdp import mechanism_rho
from service.privacy.mechanisms import MECHANISMS, Mechanism
from service.privacy.plans.notation import read_plan, write_plan
from service.privacy.plans.walking import Neighbouring
from service.privacy.tight import TightProfile
from tests.noise.reference import chi_square_p
from tests.oracles.oracle import number
from tests.privacy.reference import exactly, mp, nats, oracle

ORDERS = (Fraction("1.01"), Fraction("2.5"), Fraction(16))
GROUP = 3
ORACLE = Fraction(1, 10**12)
"""Relative error of sums and quadrature."""
DRAWS = 20_000
_KNOWN: dict[object, Fraction] = {}


class MechanismContract:
    """The contract of every mechanism.

    Attributes:
        EXAMPLES: at least two, with names.
        EXACT: whether tau is the divergence itself, rather than a bound.
        SCALED: whether noise, where it is added, has a scale.
        DELTA: at which the tight profile is compared; above what the mechanism loses for sure.
    """

    EXAMPLES: ClassVar[Sequence[Mechanism]]
    EXACT: ClassVar[bool] = True
    SCALED: ClassVar[bool] = True
    DELTA: ClassVar[Fraction] = Fraction(1, 10**5)

    def tau(self, mechanism: Any, alpha: Fraction, times: int = 1) -> Any:
        """Return the Rényi divergence of one cell moved ``times`` sensitivities, by the oracle."""
        raise NotImplementedError

    def delta(self, mechanism: Any, epsilon: Fraction) -> Any:
        """Return the least delta of one cell at epsilon, by the oracle; asked only of examples with a loss law."""
        raise NotImplementedError

    def truth(self, mechanism: Mechanism, alpha: Fraction, times: int = 1) -> Fraction:
        """Return the same as a rational, computed once."""
        key = (type(self), mechanism, alpha, times)
        if key not in _KNOWN:
            _KNOWN[key] = exactly(self.tau(mechanism, alpha, times))
        return _KNOWN[key]

    def test_every_mechanism_has_examples(self) -> None:
        assert len({type(example) for example in self.EXAMPLES}) == 1
        assert len(self.EXAMPLES) >= 2

    def test_its_document_reads_back(self, mechanism: Mechanism) -> None:
        document = write_plan(mechanism)
        assert MECHANISMS[document["type"]] is type(mechanism)
        assert read_plan(document) == mechanism
        assert hash(read_plan(document)) == hash(mechanism)

    def test_rdp_is_at_the_divergence_or_above(self, mechanism: Mechanism) -> None:
        for alpha in ORDERS:
            truth = self.truth(mechanism, alpha)
            found = nats(mechanism_tau(mechanism, alpha))
            assert found >= truth * (1 - ORACLE), alpha
            assert not self.EXACT or found <= truth * (1 + Fraction(1, 10**9)), alpha

    def test_rdp_does_not_fall(self, mechanism: Mechanism) -> None:
        taus = [nats(mechanism_tau(mechanism, alpha)) for alpha in ORDERS]
        assert taus == sorted(taus)

    def test_rho_bounds_every_order(self, mechanism: Mechanism) -> None:
        rho = mechanism_rho(mechanism).nats
        for alpha in ORDERS:
            assert rho is None or rho * alpha >= self.truth(mechanism, alpha) * (1 - ORACLE)

    def test_pure_epsilon_bounds_every_order(self, mechanism: Mechanism) -> None:
        epsilon = mechanism.pure_epsilon().nats
        for alpha in (*ORDERS, Fraction(300)):
            assert epsilon is None or nats(mechanism_tau(mechanism, alpha)) <= epsilon
        assert epsilon is None or epsilon >= self.truth(mechanism, ORDERS[-1]) * (1 - ORACLE)

    def test_more_noise_costs_no_more(self, mechanism: Mechanism) -> None:
        quieter = mechanism.scaled(Fraction(3, 2))
        assert (quieter != mechanism) is (mechanism.ADDITIVE and self.SCALED)
        for more, less in (
            (mechanism_rho(mechanism), mechanism_rho(quieter)),
            (mechanism.pure_epsilon(), quieter.pure_epsilon()),
            *((mechanism_tau(mechanism, alpha), mechanism_tau(quieter, alpha)) for alpha in ORDERS),
        ):
            assert not more < less

    def test_a_group_costs_what_moving_so_far_costs(self, mechanism: Mechanism) -> None:
        grouped, times = mechanism.grouped(GROUP)
        assert mechanism.grouped(1) == (mechanism, 1)
        for alpha in ORDERS[1:]:
            found = mechanism_tau(grouped, alpha).nats
            assert found is None or found * times >= self.truth(mechanism, alpha, GROUP) * (1 - ORACLE)

    def test_the_simplest_form_costs_the_same(self, mechanism: Mechanism) -> None:
        simplest = mechanism.simplest()
        assert simplest.simplest() == simplest
        assert simplest.pure_epsilon() == mechanism.pure_epsilon()
        for alpha in ORDERS:
            one, two = nats(mechanism_tau(simplest, alpha)), nats(mechanism_tau(mechanism, alpha))
            assert abs(one - two) <= two / 10**20

    def test_a_change_moves_as_many_cells_as_it_says(self, mechanism: Mechanism) -> None:
        assert mechanism.moved(replaced=True, one_side=False)[1] == (2 if mechanism.ADDITIVE else 1)
        if mechanism.ADDITIVE:
            wide = replace(mechanism, cells=5, cells_added=4)
            assert wide.moved(replaced=True, one_side=False) == (mechanism, 5)
            assert wide.moved(replaced=True, one_side=True) == (mechanism, 4)
            assert [field for field, _ in wide.faults(replaced=False, divided=False)] == ["cells_added"]

    def test_the_tight_profile_is_the_laws(self, with_law: Mechanism) -> None:
        """epsilon at a delta keeps it, and a millionth less does not."""
        profile = TightProfile.of(with_law, Neighbouring.REPLACE_ONE) if not with_law.ADDITIVE else None
        profile = profile or TightProfile.of(replace(with_law, cells=1, cells_added=None), Neighbouring.ADD_REMOVE)
        assert profile is not None
        found = profile.epsilon(self.DELTA)
        assert found is not None
        epsilon = nats(found.loss)
        assert self.delta(with_law, epsilon) <= number(self.DELTA) * (1 + mp.mpf(10) ** -9)
        assert self.delta(with_law, epsilon * (1 - Fraction(1, 10**6))) > number(self.DELTA)

    def test_drawn_values_have_their_law(self, mechanism: Mechanism) -> None:
        law = mechanism.noise_law()
        assert (law is not None) is mechanism.ADDITIVE
        if law is not None and mechanism.DRAWN:
            values, counts = np.unique(sample(law, DRAWS, Keystream(bytes(32))), return_counts=True)
            masses = self.masses(mechanism)
            places = [x for x in masses if masses[x] * DRAWS >= 10]
            seen = dict(zip(values.tolist(), counts.tolist(), strict=True))
            observed = [seen.get(x, 0) for x in places]
            expected = [float(masses[x]) * DRAWS for x in places]
            if len(places) < len(masses):
                observed.append(DRAWS - sum(observed))
                expected.append(DRAWS - sum(expected))
            assert sum(observed) == DRAWS
            assert chi_square_p(observed, expected) > 1e-4

    def masses(self, mechanism: Any) -> dict[int, Any]:
        """Return the probability of each integer that may be drawn, by the oracle."""
        raise NotImplementedError


class IntegerContract(MechanismContract):
    """Noise on the integers, by the logarithm of its mass."""

    def log_mass(self, mechanism: Any) -> Any:
        """Return the oracle's function."""
        raise NotImplementedError

    def tau(self, mechanism: Any, alpha: Fraction, times: int = 1) -> Any:
        return oracle.renyi_discrete(self.log_mass(mechanism), mechanism.sensitivity * times, alpha)

    def delta(self, mechanism: Any, epsilon: Fraction) -> Any:
        log_mass, factor = self.log_mass(mechanism), mp.exp(number(epsilon))
        p = oracle.pmf(log_mass)
        moved = (p[x] - factor * p.get(x - mechanism.sensitivity, 0) for x in p)
        of_noise = mp.fsum(one for one in moved if one > 0)
        if mechanism.threshold is None:
            return of_noise
        published = mp.fsum(p[x] for x in p if x + mechanism.sensitivity >= mechanism.threshold)
        return published + (1 - published) * of_noise  # what the charge stands for: the cell, and a key beside it

    def masses(self, mechanism: Any) -> dict[int, Any]:
        found: dict[int, Any] = oracle.pmf(self.log_mass(mechanism))
        return found


class DensityContract(MechanismContract):
    """Noise with a density, by that and a width to step by."""

    def density(self, mechanism: Any) -> tuple[Any, Any]:
        """Return the oracle's density and its spread."""
        raise NotImplementedError

    def tau(self, mechanism: Any, alpha: Fraction, times: int = 1) -> Any:
        density, spread = self.density(mechanism)
        return oracle.renyi_continuous(density, spread, mechanism.sensitivity * times, alpha)

    def delta(self, mechanism: Any, epsilon: Fraction) -> Any:
        """The loss falls with y: left of where it is epsilon, the density is more than e^epsilon times the other."""
        density, spread = self.density(mechanism)
        s, e = number(mechanism.sensitivity), number(epsilon)

        def loss(y: Any) -> Any:
            return mp.log(density(y)) - mp.log(density(y - s))

        low, high = -60 * spread, 60 * spread
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if loss(middle) >= e else (low, middle)
        return oracle.hockey_stick(density, spread, mechanism.sensitivity, epsilon, low)
