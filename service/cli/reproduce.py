"""Reproduction of the papers' table and figure on a terminal: the service's figures beside the printed ones."""

from collections.abc import Iterable, Iterator

import numpy as np

from service.empirical.reproduction import (
    CELLS,
    FIGURE_1_EPL,
    FIGURE_1_MEAN,
    FIGURE_1_PEOPLE,
    TABLE_C_NOTE,
    TableRow,
    figure_1,
    table_sa1_a,
    table_sa1_b,
    table_sa1_c,
)

REPLICATES = 200
TOLERANCE = 0.15  # of the figure, relatively
SEED = 1
_FEWER_PEOPLE = 10**7


def table_sa1() -> Iterator[tuple[str, bool]]:
    """Yield lines, each with True where its row should be reproduced and is not."""
    yield f"Table SA1: EPL of two-tailed geometric noise on {CELLS:,} cells, {REPLICATES} replicates", False
    yield "", False
    yield (
        "(a) against epsilon, at bandwidth 0.1 and percentile 95. The noise has success probability epsilon/2, so",
        False,
    )
    yield " that the true loss for a shift by one is -ln(1 - epsilon/2), about half of the estimated EPL.", False
    yield from _rows("epsilon", table_sa1_a(REPLICATES, SEED), wanted=True)
    yield "(b) against the bandwidth, at epsilon = 0.25 and percentile 95, really varied", False
    yield from _rows("bandwidth", table_sa1_b(REPLICATES, SEED), wanted=False)
    yield (
        "(c) against the percentile that ends the range, at epsilon = 0.25 and bandwidth 0.1, really varied",
        False,
    )
    yield from _rows("percentile", table_sa1_c(REPLICATES, SEED), wanted=False)
    for line in TABLE_C_NOTE:
        yield line, False


def _rows(what: str, rows: Iterable[TableRow], *, wanted: bool) -> Iterator[tuple[str, bool]]:
    yield f"  {what:>10}   {'ours':^28}   {'printed':^28}", False
    for row in rows:
        ours = "no density between residuals" if row.mean is None else _figures(row.mean, row.interval)
        off = "" if row.mean is None else f"{row.mean / row.printed[0] - 1:+8.1%}"
        missed = wanted and not row.within
        mark = "  outside the printed interval" if missed else ""
        yield f"  {row.label:>10}   {ours:<28}   {_figures(row.printed[0], row.printed[1:])}{off}{mark}", missed
    yield "", False


def _figures(mean: float, interval: tuple[float, ...] | None) -> str:
    low, high = (np.nan, np.nan) if interval is None else interval
    return f"{mean:.4f} ({low:.4f} to {high:.4f})"


def figure_one() -> Iterator[tuple[str, bool]]:
    """Yield lines, each with True where its curve should be reproduced and is not."""
    yield f"Figure 1: budgets at which EPL is {FIGURE_1_EPL}; bandwidth 0.15, percentile 95, J = 3", False
    yield "The paper states neither N nor mu.", False
    for people in (FIGURE_1_PEOPLE, _FEWER_PEOPLE):
        yield "", False
        yield f"  N = {people:,}, mu = {FIGURE_1_MEAN:,}", False
        for panel in figure_1(people, FIGURE_1_MEAN, REPLICATES, SEED):
            experiment = panel.experiment
            missed = people == FIGURE_1_PEOPLE and abs(panel.relative_error) > TOLERANCE
            parts = f", P = {experiment.parts}" if experiment.parts > 1 else ""
            budget = f"{experiment.algorithm.upper()}({experiment.epsilon:g}{parts})"
            found = _figures(panel.estimate.epl, panel.interval)
            yield f"    {budget:<18} {found:<28} {panel.relative_error:+7.1%}{'  missed' if missed else ''}", missed
    yield "", False
    yield (
        "In brackets the 95 % basic bootstrap interval. With fewer areas EPL is the same for all three, and too large:",
        False,
    )
    yield "that is the bias of a maximum of noisy ratios, and no difference between the algorithms.", False
