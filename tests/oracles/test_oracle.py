"""The reference values are what the oracle computes, to their last digit."""

import mpmath as mp  # type: ignore[import-untyped]  # it publishes no types
import pytest

from tests.oracles import files, oracle


@pytest.mark.statistics  # half a minute, for a file that changes once a year
def test_the_reference_values_are_what_the_oracle_computes() -> None:
    assert oracle.table() == files.VALUES.read_text(encoding="utf-8")


@pytest.mark.parametrize("at", ["0.5", "0.94"])
def test_a_delta_far_in_the_tail_is_its_closed_form(at: str) -> None:
    """By error functions, for losses that only outputs below 0 have; 1.0966e-125 was an earlier oracle's at 0.94."""
    (row,) = [row for row in files.rows("cost") if row.get("sigma_squared") == "630"]
    v, m, e = mp.mpf(630), mp.mpf(15), oracle.number(at)
    with mp.workdps(80):
        unit, crossing = mp.sqrt(2 * v), m + mp.mpf(1) / 2 - v * e
        both = mp.erfc((m - crossing) / unit) - mp.exp(e) * mp.erfc((m - crossing + 1) / unit)
        assert row["delta"][at] == mp.nstr(both / (2 * mp.erfc(m / unit)), 17)
