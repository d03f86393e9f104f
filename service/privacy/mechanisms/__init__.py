"""The mechanisms: one file each, by the contract in ``base.py``."""

from typing import TypeGuard

from service.privacy.fields import THRESHOLD
from service.privacy.mechanisms.above_threshold import AboveThreshold
from service.privacy.mechanisms.base import Continuous, Discrete, Mechanism
from service.privacy.mechanisms.declared import Declaration, Declared
from service.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from service.privacy.mechanisms.discrete_osgt import DiscreteOsgt
from service.privacy.mechanisms.exponential import Exponential
from service.privacy.mechanisms.gaussian import Gaussian
from service.privacy.mechanisms.geometric import Geometric
from service.privacy.mechanisms.laplace import Laplace
from service.privacy.mechanisms.new_keys import NewKeys, without_threshold
from service.privacy.mechanisms.noise_table import NoiseTable
from service.privacy.mechanisms.osgt import Osgt
from service.privacy.mechanisms.randomized_response import RandomizedResponse


def _by_name(*mechanisms: type[Mechanism]) -> dict[str, type[Mechanism]]:
    """Return the classes by name, checked to implement every method: mypy takes no abstract class as an argument."""
    return {mechanism.TYPE: mechanism for mechanism in mechanisms}


MECHANISMS = _by_name(
    Geometric,
    DiscreteGaussian,
    DiscreteOsgt,
    NoiseTable,
    Laplace,
    Gaussian,
    Osgt,
    RandomizedResponse,
    Exponential,
    AboveThreshold,
    Declared,
)
"""All mechanisms, by their names in documents."""


def mechanism_label(name: str) -> str:
    """Return the label of a mechanism that a document names; that of no mechanism is the name itself."""
    return MECHANISMS[name].LABEL if name in MECHANISMS else name.replace("_", " ")


def _in_words(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


DRAWN = _in_words([name for name, mechanism in MECHANISMS.items() if mechanism.DRAWN])
"""The names of the mechanisms that are drawn, in words."""

ADDITIVE = _in_words([name for name, mechanism in MECHANISMS.items() if mechanism.ADDITIVE])
"""The names of the mechanisms that add noise, in words."""

OffsetTails = Osgt | DiscreteOsgt


def is_offset_tails(mechanism: Mechanism) -> TypeGuard[OffsetTails]:
    """Return whether a mechanism has offset symmetric Gaussian tails, continuous or on the integers."""
    return isinstance(mechanism, OffsetTails)


def takes_threshold(mechanism: Mechanism) -> TypeGuard[Discrete]:
    """Return whether a mechanism can have a threshold: its noise is integer, symmetric and unimodal."""
    return isinstance(mechanism, Discrete) and THRESHOLD in mechanism.AFTER


__all__ = [
    "ADDITIVE",
    "DRAWN",
    "MECHANISMS",
    "AboveThreshold",
    "Continuous",
    "Declaration",
    "Declared",
    "Discrete",
    "DiscreteGaussian",
    "DiscreteOsgt",
    "Exponential",
    "Gaussian",
    "Geometric",
    "Laplace",
    "Mechanism",
    "NewKeys",
    "NoiseTable",
    "OffsetTails",
    "Osgt",
    "RandomizedResponse",
    "is_offset_tails",
    "mechanism_label",
    "takes_threshold",
    "without_threshold",
]
