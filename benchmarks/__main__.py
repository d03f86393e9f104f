"""All benchmarks, one after the other: ``python -m benchmarks``."""

import os
import platform

from benchmarks import balance, certified, charges, empirical, growth, noise, pricing, tight


def main() -> None:
    """Run them and print their figures."""
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()} {platform.machine()}\n")
    for number, benchmark in enumerate((charges, pricing, certified, tight, noise, growth, balance, empirical)):
        if number:
            print()
        benchmark.run()


if __name__ == "__main__":
    main()
