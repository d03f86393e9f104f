"""The accuracy of noisy counts, mechanism by mechanism, as JSON."""

import json
import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from service.api.computations.accuracy import margin_body, noise_of
from service.api.schemas.exact_numbers import number_up
from service.api.schemas.granularity import unit_of
from service.privacy.mechanisms import Mechanism
from service.privacy.plans.notation import write_plan

_SHARED = frozenset(("type", "name", "tags", "reads", "partitions"))


class CountAccuracy(BaseModel):
    """The accuracy of one noisy count of a mechanism; moe, coverage and standard_deviation: null without a figure."""

    mechanism: str = Field(description="Its name, or its path in the plan.")
    tags: list[str]
    type: str
    parameters: dict[str, Any] = Field(description="Its own fields in normal form.")
    repetitions: int = Field(description="The times that it runs, each with noise of its own.")
    moe: int | float | str | None = Field(
        description="At most a share 1 - confidence of the counts is further from the truth. An integer, or with a"
        " granularity the text of a multiple of it; of continuous noise rounded up. null: it adds no noise to counts,"
        " or its noise is too wide. With a threshold it holds before suppression, and not for published counts given"
        " that they reached it."
    )
    coverage: float | None = Field(description="The proven confidence of this margin, rounded down.")
    standard_deviation: float | None = Field(description="Rounded up.")


class Accuracy(NamedTuple):
    """The accuracy of one noisy count, as JSON; None: there is no figure."""

    moe: int | float | str | None = None
    coverage: float | None = None
    standard_deviation: float | None = None


def count_accuracies(
    runs: Iterable[tuple[Mechanism, int]], confidence: Fraction, known: dict[str, Accuracy]
) -> Iterator[tuple[Mechanism, dict[str, Any]]]:
    """Yield each mechanism with its accuracy.

    Args:
        runs: the mechanisms, with the times that each runs.
        confidence: of the margins.
        known: the accuracy of noise that was computed before, by its text; equal noise is computed once.
    """
    for mechanism, times in runs:
        document = write_plan(mechanism)
        own = {name: value for name, value in document.items() if name not in _SHARED}
        noise = json.dumps([document["type"], own])
        if noise not in known:
            known[noise] = _accuracy_of(mechanism, confidence)
        figures = {
            "mechanism": mechanism.name or "",
            "tags": list(mechanism.tags),
            "type": document["type"],
            "parameters": own,
            "repetitions": times,
            **known[noise]._asdict(),
        }
        yield mechanism, figures


def _accuracy_of(mechanism: Mechanism, confidence: Fraction) -> Accuracy:
    simplest, unit = mechanism.simplest(), unit_of(mechanism)
    law = simplest.noise_law()
    if law is None:
        return Accuracy()
    try:
        noise = noise_of(simplest, law, 1, 1 - confidence)
        margin = margin_body(noise, confidence, unit)
        variance = number_up(noise.variance() * unit**2)
    except ValueError:  # the noise is too wide for a certified figure
        return Accuracy()
    deviation = None if variance is None else math.nextafter(math.sqrt(variance), math.inf)
    return Accuracy(margin["moe"], margin["coverage"], deviation)
