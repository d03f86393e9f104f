"""Losses given by their atoms, composed with little continuous Gaussian noise: a sum of closed forms.

Between atoms that are many standard deviations of the Gaussian loss apart, delta falls off a cliff and stays. A line
finds the flat parts badly, because its terms cancel. The profile of the composition is the sum of p g(epsilon - x) over
the atoms x, where g is that of the Gaussian mechanism, and all its terms are positive.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.special import erfcx  # type: ignore[import-untyped]  # it publishes no types

from service.privacy.laws.loss_laws import GaussianLoss
from service.privacy.numerics.numbers import double_up
from service.privacy.tight.atoms import EQUAL_LOSSES, enumerate_atoms, rough_atom_count
from service.privacy.tight.contour import LossComposition, sketch_of
from service.privacy.tight.families import Doubles
from service.privacy.tight.laws import Atoms, ComposedLaw, compose_laws, total_rho
from service.privacy.tight.work_budget import spend

FEW_ATOMS = 1 << 12
APART = 20.0
"""Atoms are far apart if some neighbours are, by this many standard deviations of the Gaussian loss; one is, too."""
ERFCX = 1e-13
"""The relative error of erfcx by the documentation of the library that scipy takes it from (Johnson 2012)."""
UNIT = 2.0**-53
TINY = 1e-300
"""Above all that is lost where numbers are too small for doubles."""
_COST = 8  # of a term, in short formulas


@dataclass(frozen=True, slots=True)
class AtomsBesideGaussian:
    """A composition of atoms and a continuous Gaussian mechanism.

    Attributes:
        sketch: for choices.
        atoms: of all other laws.
        mu: standard deviation of the Gaussian loss, the root of 2 rho.
    """

    sketch: LossComposition
    atoms: Atoms
    mu: float

    @classmethod
    def of(cls, laws: Mapping[ComposedLaw, int]) -> "AtomsBesideGaussian | None":
        """Return the analysis of a composition with few atoms that are far apart; None of any other.

        Raises:
            NotTight: it would take too long.
        """
        rho = total_rho(laws)
        discrete: dict[ComposedLaw, int] = {
            law: count for law, count in laws.items() if not isinstance(law, GaussianLoss)
        }
        if not rho or rough_atom_count(discrete) > FEW_ATOMS:
            return None
        mu, atoms = double_up(Fraction(math.sqrt(2 * rho)) * (1 + Fraction(1, 10**15))), enumerate_atoms(discrete)
        if len(atoms.x) > 1 and not np.diff(atoms.x).max() > APART * mu:
            return None
        gaussian = GaussianLoss(sigma_squared=1 / (2 * rho))
        return cls(sketch_of(compose_laws({atoms: 1, gaussian: 1})), atoms, mu)

    def at(self, epsilon: float, rough: bool = False) -> tuple["AtomsBesideGaussian", str]:  # noqa: ARG002
        """Return the analysis itself, which serves every epsilon."""
        return self, "atoms"

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """Return log of the sum of p g(epsilon - x), rounded up, and about its slope.

        Losses are known to within ``EQUAL_LOSSES`` of the largest, so epsilon is lowered by as much.

        Args:
            epsilon: nats.
        """
        spend(_COST * len(self.atoms.x))
        epsilon -= EQUAL_LOSSES * float(np.abs(self.atoms.x).max())
        deltas, beside = _profile(epsilon - self.atoms.x, self.mu)
        rounding = self.atoms.rounding + (len(deltas) + 16) * UNIT
        value = float(self.atoms.p @ deltas) * (1 + rounding) + self.atoms.infinite + TINY
        return math.log(value), -float(self.atoms.p @ beside) / value


def _profile(e: Doubles, mu: float) -> tuple[Doubles, Doubles]:
    """Return upper bounds on the Gaussian profile at any e, and roughly less its slope.

    With M(x) = (1 - Phi(x))/phi(x), the profile at e >= 0 is phi(x) (M(x) - M(x + mu)) for x = e/mu - mu/2. Below 0 it
    is 1 - exp(e) + exp(e) times that at -e.
    """
    size = np.abs(e)
    x = size / mu - mu / 2
    near, far = (math.sqrt(math.pi / 2) * erfcx(at / math.sqrt(2)) for at in (x, x + mu))
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (1 + 8 * UNIT * (x * x + 2))
    # where x is rounded by a unit of size/mu, M, which falls by less than 1, moves by as much
    uncertain = (2 * ERFCX + 8 * UNIT) * (near + far) + 8 * UNIT * (x + mu)
    above = density * (np.maximum(near - far, 0.0) + uncertain)
    beside = density * far
    below = e < 0
    return np.where(below, -np.expm1(-size) + np.exp(-size) * above, above), np.where(
        below, np.exp(-size) * (1 - beside), beside
    )
