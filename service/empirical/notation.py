"""Experiments as JSON has them: exact numbers as text, the papers' letters for the sizes."""

from fractions import Fraction
from typing import Any

from service.empirical.experiments import Experiment
from service.empirical.loss import SmoothingSetting


def experiment_of(parameters: dict[str, Any]) -> Experiment:
    """Return the experiment that parameters describe, which are complete and within their limits.

    Args:
        parameters: exact numbers as text, whole ones as numbers, by the papers' letters where these have some.
    """
    exact = {
        name: float(Fraction(parameters[name]))
        for name in ("epsilon", "bandwidth", "percentile", "multiplier", "confidence", "total_share")
    }
    return Experiment(
        algorithm=parameters["algorithm"],
        epsilon=exact["epsilon"],
        people=parameters["N"],
        levels=parameters["J"],
        mean=parameters["mu"],
        parts=parameters["P"],
        strata=parameters["strata"],
        total_share=exact["total_share"],
        noise=parameters.get("noise", "geometric"),  # jobs of earlier versions do not say
        direct_runs=parameters["direct_runs"],
        setting=SmoothingSetting(exact["bandwidth"], exact["percentile"], exact["multiplier"]),
        replicates=parameters["bootstrap"],
        risk=float(1 - Fraction(parameters["confidence"])),
        seed=parameters["seed"],
    )
