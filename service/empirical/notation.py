"""Experiments in JSON: exact numbers are text, and sizes have the papers' letters."""

from fractions import Fraction
from typing import Any

from service.empirical.experiments import Experiment
from service.empirical.loss import SmoothingSetting


def experiment_of(parameters: dict[str, Any]) -> Experiment:
    """Return the experiment that complete and valid parameters describe.

    Args:
        parameters: by name, or by the papers' letter if there is one. Exact numbers are text, whole ones are numbers.
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
        noise=parameters.get("noise", "geometric"),  # jobs of earlier versions lack it
        direct_runs=parameters["direct_runs"],
        setting=SmoothingSetting(exact["bandwidth"], exact["percentile"], exact["multiplier"]),
        replicates=parameters["bootstrap"],
        risk=float(1 - Fraction(parameters["confidence"])),
        seed=parameters["seed"],
    )
