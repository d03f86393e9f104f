"""All benchmarks, one after the other: ``python -m benchmarks``."""

import os
import platform

from benchmarks import (
    balance,
    batch,
    bulk,
    capacity,
    certified,
    charges,
    empirical,
    growth,
    high_water,
    hostile,
    noise,
    periods,
    planning,
    pricing,
    replicas,
    tabulations,
    tight,
    verify,
    windows,
)


def main() -> None:
    """Run them and print their figures."""
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()} {platform.machine()}\n")
    benchmarks = (
        charges,
        batch,
        pricing,
        capacity,
        planning,
        certified,
        tight,
        noise,
        bulk,
        growth,
        periods,
        windows,
        balance,
        tabulations,
        verify,
        empirical,
        replicas,
        high_water,
        hostile,
    )
    for number, benchmark in enumerate(benchmarks):
        if number:
            print()
        benchmark.run()


if __name__ == "__main__":
    main()
