"""The mechanisms: one file each, by the contract in ``base.py``."""

from service.privacy.mechanisms.base import Continuous, Discrete, Mechanism
from service.privacy.mechanisms.declared import Declaration, Declared
from service.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from service.privacy.mechanisms.discrete_osgt import DiscreteOsgt
from service.privacy.mechanisms.gaussian import Gaussian
from service.privacy.mechanisms.geometric import Geometric
from service.privacy.mechanisms.laplace import Laplace
from service.privacy.mechanisms.osgt import Osgt
from service.privacy.mechanisms.randomized_response import RandomizedResponse

MECHANISMS: dict[str, type[Mechanism]] = {
    mechanism.TYPE: mechanism
    for mechanism in (
        Geometric,
        DiscreteGaussian,
        Laplace,
        Gaussian,
        Osgt,
        DiscreteOsgt,
        RandomizedResponse,
        Declared,
    )
}
"""All mechanisms, by their names in documents."""

OffsetTails = Osgt | DiscreteOsgt

__all__ = [
    "MECHANISMS",
    "Continuous",
    "Declaration",
    "Declared",
    "Discrete",
    "DiscreteGaussian",
    "DiscreteOsgt",
    "Gaussian",
    "Geometric",
    "Laplace",
    "Mechanism",
    "OffsetTails",
    "Osgt",
    "RandomizedResponse",
]
