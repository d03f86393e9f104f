"""Upper bounds on delta at many epsilons, each line or enumeration serving those near it, and where delta may bend."""

import math
from dataclasses import dataclass, field

import numpy as np

from service.privacy.tight import Enumeration, TightProfile
from service.privacy.tight.atoms import EQUAL_LOSSES, AtomEnumeration, profile
from service.privacy.tight.branches import contours_of
from service.privacy.tight.contour import ContourLine, Lattice
from service.privacy.tight.families import Doubles
from service.privacy.tight.laws import lattice_of
from service.privacy.tight.search import LogDeltaBound, TightAnalysis, bound_near
from service.privacy.tight.work_budget import CALL, NotTight, remaining_work, spend


@dataclass(slots=True)
class ManyDeltas:
    """The profile of a plan at many epsilons.

    Attributes:
        profile: with an analysis.
        analysis: that of the profile, or contours where it counts tails as lost.
        width: nats for which one line serves.
        largest: a bound on the finite losses, nats; infinite if there is none.
        lattice: of the losses, if they have one and are not given by their atoms.
        backward: of the other direction, where it differs.
        most: the epsilons that are worth the work for one question.
    """

    profile: TightProfile
    analysis: TightAnalysis
    width: float
    largest: float
    lattice: Lattice | None
    backward: "ManyDeltas | None" = None
    most: int = 8000
    _bounds: dict[tuple[float, bool], LogDeltaBound] = field(default_factory=dict)

    @classmethod
    def of(cls, one: TightProfile, width: float, largest: float) -> "ManyDeltas":
        """Return the deltas of a profile.

        Args:
            one: a profile with an analysis.
            width: nats, about the standard deviation of the loss.
            largest: the plan's pure epsilon; infinite if there is none.

        Raises:
            NotTight: there is no analysis, or it would take too long.
        """
        analysis = one.analysis
        if isinstance(analysis, Enumeration) and analysis.atoms.infinite > 0:
            lines, kept = contours_of(one.laws)
            analysis = lines if kept == 0 else analysis
        if analysis is None:
            raise NotTight
        lattice = None if isinstance(analysis, Enumeration) else lattice_of(one.laws)
        backward = None if one.backward is None else cls.of(one.backward, width, largest)
        return cls(one, analysis, width, largest, lattice, backward)

    def log_deltas(self, epsilons: Doubles, *, rough: bool) -> Doubles:
        """Return upper bounds on log delta.

        Args:
            epsilons: nats, each at least 0.
            rough: take shorter lines, whose bounds are further above.

        Raises:
            NotTight: it would take too long, or doubles are too coarse.
        """
        places = np.floor(epsilons / self.width)
        found = np.full(len(epsilons), -math.inf)
        places[epsilons >= self.largest] = math.nan
        for place in np.unique(places[~np.isnan(places)]).tolist():
            here = places == place
            found[here] = np.maximum(self._near((place, rough), epsilons[here]), self.profile.least_log_delta)
        lost = -math.expm1(self.profile.log_finite) * (1 + 1e-14)
        if lost > 0:
            found = np.logaddexp(found, math.log(lost))
        if self.backward is not None:
            found = np.maximum(found, self.backward.log_deltas(epsilons, rough=rough))
        return np.asarray(np.where(np.isfinite(found), np.nextafter(found, np.inf), found))

    def _near(self, place: tuple[float, bool], epsilons: Doubles) -> Doubles:
        """Return upper bounds on log delta at epsilons of one place, whose bound is that for the first asked for."""
        if place not in self._bounds:
            middle = float(np.median(epsilons))
            try:
                near = self.analysis.at(middle, rough=True) if place[1] else bound_near(self.analysis, middle)
            except NotTight:
                if remaining_work() < CALL:
                    raise
                return np.zeros(len(epsilons))  # doubles are too coarse here
            self._bounds[place] = near[0]
        return _log_deltas(self._bounds[place], epsilons)

    def bend(self, low: float, high: float) -> float | None:
        """Return a place between two epsilons where delta may bend; None if it is linear in exp(epsilon) there."""
        middle = (low + high) / 2
        if isinstance(self.analysis, AtomEnumeration):
            x = self.analysis.atoms.x
            between = x[np.searchsorted(x, low, side="right") : np.searchsorted(x, high, side="left")]
            middle = float(between[len(between) // 2]) if len(between) else high
        elif self.lattice is not None:
            offset, spacing = float(self.lattice.offset), float(self.lattice.spacing)
            first, last = (
                math.floor((low - offset) / spacing + 1e-6) + 1,
                math.ceil((high - offset) / spacing - 1e-6) - 1,
            )
            middle = offset + (first + last) // 2 * spacing if first <= last else high
        return middle if low < middle < high else None


def _log_deltas(bound: LogDeltaBound, epsilons: Doubles) -> Doubles:
    match bound:
        case ContourLine():
            return bound.log_deltas(epsilons)[0]
        case AtomEnumeration(atoms=atoms):
            spend(len(atoms.x) + len(epsilons))
            with np.errstate(divide="ignore"):
                return np.asarray(np.log(profile(atoms, epsilons - EQUAL_LOSSES * float(np.abs(atoms.x).max()))))
        case _:
            return np.array([bound.log_delta(epsilon)[0] for epsilon in epsilons.tolist()])
