"""The demo's report: plain text of at most 80 columns.

The figures are the service's own; only shares and the count of counties within their margin are worked out here.
"""

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

from service.demo.release import County
from service.demo.text import percent, section, title

_SHOWN_COUNTIES = 10


def opening(address: str, account: Mapping[str, Any]) -> str:
    """The title, and the account that was opened."""
    return "\n".join(
        [
            title("The 2020 Census redistricting release (P.L. 94-171), US persons"),
            f"Service    {address}",
            f"Account    {account['name']}",
            f"           unit {account['unit']}, neighbouring relation {account['neighbouring']},",
            f"           budget rho = {account['budget']['rho']}",
        ]
    )


def registered(allocation: Mapping[str, Any], release: Mapping[str, Any], spent: Mapping[str, Any]) -> str:
    """The release by level of geography: how many queries, and their part of the loss."""
    total = release["cost"]["zcdp"]["rho"]
    rows = [(level["geolevel"], len(level["queries"])) for level in allocation["levels"]]
    lines = [section(f"Registered: {sum(count for _, count in rows)} discrete Gaussian queries, as one release")]
    lines.append(f"  {'level':<14}{'queries':>9}{'rho':>12}{'share of the loss':>20}")
    for level, count in rows:
        rho = spent[level]["zcdp"]["rho"]
        lines.append(f"  {level:<14}{count:>9}{_up(rho):>12}{100 * rho / total:>18.1f} %")
    lines.append(f"  {'all':<14}{sum(count for _, count in rows):>9}{_up(total):>12}{100:>18.1f} %")
    return "\n".join(lines)


def cost(allocation: Mapping[str, Any], release: Mapping[str, Any]) -> str:
    """Return the lines about the release's cost, and what is left of the budget."""
    rho = release["cost"]["zcdp"]
    statement = _by_zcdp(release["cost"])
    return "\n".join(
        [
            section("What it costs"),
            f"  rho        {rho['rho_exact']} = {rho['rho']}",
            f"  epsilon    {statement['epsilon']} at delta = {statement['delta']}",
            f"             (published by the Census Bureau for persons: {allocation['expected']['epsilon_published']})",
            f"  remaining  rho = {release['remaining']['rho']}",
        ]
    )


def about(attribute: str, spent: Mapping[str, Any]) -> str:
    """The part of the loss that carries one tag."""
    epsilon = _up(_by_zcdp(spent)["epsilon"])
    return (
        f"  Of this, about `{attribute}` (GET .../balance?tag={attribute}):\n"
        f"             rho = {_up(spent['zcdp']['rho'])}, epsilon = {epsilon} at the same delta"
    )


def calibrated(answer: Mapping[str, Any]) -> str:
    """The noise that meets a margin of error."""
    confidence = percent(answer["confidence"])
    return "\n".join(
        [
            section(f"Noise for a margin of error of +/- {answer['moe']} at {confidence} (/v1/calibrations/moe)"),
            f"  discrete Gaussian, sigma^2 = {answer['mechanism']['sigma_squared']}:"
            f" rho = {_up(answer['cost']['zcdp']['rho'])} for each cell",
        ]
    )


def drawn(counties: Sequence[County], draw: Mapping[str, Any]) -> str:
    """The first noisy counties, and how many of all are within the margin of error."""
    margin, noisy = draw["margin_of_error"]["moe"], draw["noisy"]
    within = sum(abs(value - county.population) <= margin for county, value in zip(counties, noisy, strict=True))
    confidence = percent(draw["margin_of_error"]["confidence"])
    lines = [
        section(f"Noisy counts of {len(counties):,} counties, by the release's {draw['mechanism']['name']}"),
        "  The true counts here are the published ones of the 2010 Census, as an example.",
        "",
        f"  {'county':<40}{'published':>11}{'noisy':>11}  margin ({confidence})",
    ]
    for county, value in list(zip(counties, noisy, strict=True))[:_SHOWN_COUNTIES]:
        lines.append(f"  {county.name:<40.40}{county.population:>11,}{value:>11,}  +/- {margin}")
    lines.append(f"  ... and {len(counties) - _SHOWN_COUNTIES:,} more; {within:,} of all are within their margin.")
    return "\n".join(lines)


def ending(account: str, address: str | None) -> str:
    """Return the last lines, about what is left behind; ``address`` is None where the demo's own service ends."""
    if address is None:
        return "\nThe demo's service stops now and leaves nothing behind."
    return f"\nThe account {account} stays; every operation is described at {address}/docs"


def _by_zcdp(guarantee: Mapping[str, Any]) -> Mapping[str, Any]:
    """Its (epsilon, delta) statement by zCDP, the analysis that the Census Bureau's figure is by."""
    found: Mapping[str, Any] = next(s for s in guarantee["approximate"] if s["via"] == "zcdp")
    return found


def _up(loss: float) -> Decimal:
    """A loss with six decimals, rounded up as the service does: a shortened bound stays a bound."""
    return Decimal(repr(loss)).quantize(Decimal("0.000001"), ROUND_CEILING)
