"""The self-audit: our noise passes, and noise that is wrong by little is caught."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from service.__main__ import app
from service.cli import noise_audit as auditing, noise_audit_safetab, reproduce
from service.cli.noise_audit import Finding, Runs, Subject, audit, own_noise, report
from service.noise import Keystream, NoiseLaw, sample
from service.privacy.mechanisms import DiscreteGaussian, Geometric, Laplace, Mechanism

_SIZE = 200_000
_KEY = bytes(range(32))


def _noise(law: NoiseLaw, size: int) -> NDArray[np.int64]:
    return sample(law, size, Keystream(_KEY))


def _findings(*subjects: Subject, size: int = _SIZE) -> list[Finding]:
    return list(audit(subjects, size, np.random.default_rng(40)))


def test_our_own_noise_loses_no_more_than_is_claimed_and_hardly_less() -> None:
    """A short audit: every law, and bounds near enough to their claims to mean something."""
    keystream = Keystream(_KEY)
    findings = _findings(*own_noise(lambda: keystream), size=50_000)
    assert [finding for finding in findings if finding.violated] == []
    assert {finding.subject.partition(",")[0] for finding in findings} == {
        "geometric", "discrete Gaussian", "discrete OSGT", "noisy counts",
    }  # fmt: skip
    pure = [finding for finding in findings if finding.statement == "epsilon" and 0.3 < finding.claim < 5]
    assert len(pure) >= 8
    for finding in pure:
        assert finding.bound > 0.85 * finding.claim
    variation = [finding for finding in findings if finding.statement == "delta at epsilon 0.0" and finding.claim > 0.3]
    assert len(variation) >= 15
    for finding in variation:
        assert finding.bound > 0.85 * finding.claim


def _scale_too_small(size: int) -> NDArray[np.int64]:
    return _noise(NoiseLaw(scale=Fraction("2.1")), size)  # a tenth below the 2.336 that is claimed


def _zero_twice(size: int) -> NDArray[np.int64]:
    """Magnitude and sign drawn apart, and minus zero not rejected."""
    magnitude = np.random.default_rng(1).geometric(-np.expm1(-1 / 2.336), size) - 1
    signed: NDArray[np.int64] = magnitude * np.random.default_rng(2).choice([-1, 1], size)
    return signed


def _never_zero(size: int) -> NDArray[np.int64]:
    noise = _noise(NoiseLaw(scale=Fraction("2.336")), size)
    return noise + (noise >= 0)


def _cut_off(size: int) -> NDArray[np.int64]:
    return np.clip(_noise(NoiseLaw(scale=Fraction("2.336")), size), -9, 9)


def _floored(size: int) -> NDArray[np.int64]:
    """Laplace noise rounded towards zero: two unit intervals fall on zero, one on every other value."""
    return np.trunc(np.random.default_rng(3).laplace(0, 2.336, size)).astype(np.int64)


def _even(size: int) -> NDArray[np.int64]:
    return 2 * _noise(NoiseLaw(scale=Fraction("1.168")), size)


_GEOMETRIC = Geometric(scale=Fraction("2.336"))
_BROKEN: dict[str, Callable[[int], NDArray[np.int64]]] = {
    "scale": _scale_too_small,
    "minus zero": _zero_twice,
    "off by one": _never_zero,
    "tail": _cut_off,
    "rounding": _floored,
    "even": _even,
}


@pytest.mark.parametrize("fault", _BROKEN)
def test_broken_geometric_noise_is_caught(fault: str) -> None:
    findings = _findings(Subject(fault, _GEOMETRIC, _BROKEN[fault]))
    assert any(finding.violated for finding in findings), findings
    sound = _findings(Subject("sound", _GEOMETRIC, lambda size: _noise(NoiseLaw(scale=Fraction("2.336")), size)))
    assert not any(finding.violated for finding in sound)


@pytest.mark.parametrize(("variance", "caught"), [("9.375", False), ("8.4", True)])
def test_gaussian_noise_of_a_variance_a_tenth_too_small_is_caught(variance: str, caught: bool) -> None:
    law = NoiseLaw(sigma_squared=Fraction(variance))
    claimed = DiscreteGaussian(sigma_squared=Fraction("9.375"))
    findings = _findings(Subject("x", claimed, lambda size: _noise(law, size)), size=1_000_000)
    assert any(finding.violated for finding in findings) == caught


def test_a_claim_that_is_too_small_is_caught() -> None:
    """The accountant may be wrong too: sensitivity 1 accounted, 2 true."""
    subject = Subject("x", _GEOMETRIC, lambda size: _noise(NoiseLaw(scale=Fraction("2.336")), size))
    assert not any(finding.violated for finding in _findings(subject))
    assert any(finding.violated for finding in _findings(replace(subject, shift=2)))


def test_any_mechanism_can_be_audited_by_its_runs() -> None:
    """Post-processed outputs on neighbouring inputs: the larger of 0 and a noisy count, of no records and of one."""

    def runs(law: NoiseLaw) -> Callable[[int], Runs]:
        def draw(size: int) -> Runs:
            noise = _noise(law, 2 * size).astype(np.float64)
            return np.maximum(noise[:size], 0), np.maximum(1 + noise[size:], 0)

        return draw

    sound, broken = (runs(NoiseLaw(scale=Fraction(scale))) for scale in ("2.336", "1.9"))
    findings = _findings(Subject("sound", _GEOMETRIC, sound))
    assert not any(finding.violated for finding in findings)
    assert max(finding.bound for finding in findings if finding.statement == "epsilon") > 0.35
    assert any(finding.violated for finding in _findings(Subject("broken", _GEOMETRIC, broken)))


def test_a_mechanism_without_a_pure_epsilon_makes_no_claim_on_one() -> None:
    gaussian: Mechanism = DiscreteGaussian(sigma_squared=Fraction(4))
    for mechanism, claims in ((gaussian, 5), (_GEOMETRIC, 6), (Laplace(scale=Fraction(2)), 6)):
        assert len(_findings(Subject("x", mechanism, _even), size=3000)) == claims


def test_a_violation_is_said_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Subject("broken", _GEOMETRIC, _zero_twice)
    lines = list(report(iter(_findings(broken, size=20_000))))
    assert [line.endswith("VIOLATED") for line, _ in lines] == [fault for _, fault in lines]
    assert any(fault for _, fault in lines)
    monkeypatch.setattr(auditing, "own_noise", lambda: [broken])
    monkeypatch.setattr(noise_audit_safetab, "own_safetab", list)
    refused = CliRunner().invoke(app, ["audit", "--size", "20000"])
    assert refused.exit_code == 1
    assert "VIOLATED" in refused.output


def test_the_audit_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    some, runs = own_noise()[:6], noise_audit_safetab.own_safetab()[:1]
    monkeypatch.setattr(auditing, "own_noise", lambda: some)
    monkeypatch.setattr(noise_audit_safetab, "own_safetab", lambda: runs)
    audited = CliRunner().invoke(app, ["audit", "--size", "1000"])
    assert audited.exit_code == 0, audited.output
    assert "geometric, scale 2.336, shift 1" in audited.output
    assert "SafeTab, geometric, at a threshold" in audited.output
    assert "VIOLATED" not in audited.output
    assert CliRunner().invoke(app, ["audit", "--size", "10"]).exit_code == 2


def test_the_table_and_the_figure_are_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "REPLICATES", 20)
    table = CliRunner().invoke(app, ["reproduce", "table-sa1"])
    assert table.exit_code == 0, table.output
    assert "0.0490 (0.0390 to 0.0673)" in table.output
    assert "no density between residuals" in table.output
    assert "the settings were held fixed" in table.output
    figure = CliRunner().invoke(app, ["reproduce", "figure-1"])
    assert figure.exit_code == 0, figure.output
    assert "N = 1,000,000,000, mu = 1,000" in figure.output
    assert CliRunner().invoke(app, ["reproduce", "table-2"]).exit_code == 2


def test_a_figure_that_is_missed_is_said_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "REPLICATES", 5)
    monkeypatch.setattr(reproduce, "FIGURE_1_PEOPLE", 10**6)  # too few areas: the bias shows
    figure = CliRunner().invoke(app, ["reproduce", "figure-1"])
    assert figure.exit_code == 1
    assert "missed" in figure.output
