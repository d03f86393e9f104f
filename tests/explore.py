"""Run of the property tests with fresh random examples, for a while or once with a given seed.

The suite itself repeats the same examples in every run. Run it as ``python -m tests.explore [--seconds 600]``, or with
``--seed`` to repeat a round that failed.
"""

import argparse
import secrets
import subprocess
import sys
import time

_SELECTED = "hypothesis and not (browser or contract or faults or image or statistics)"


def explore_once(seed: int, workers: int) -> int:
    """Run all property tests once with this seed; return pytest's exit status."""
    pytest = [sys.executable, "-m", "pytest", "-m", _SELECTED, "--quiet", "--exitfirst"]
    spread = [f"--numprocesses={workers}", "--dist=worksteal"]
    return subprocess.call([*pytest, *spread, "--hypothesis-profile=explore", f"--hypothesis-seed={seed}"])


def main() -> int:
    """Explore until the time is over or a test fails, and print the seed of each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, help="run one round with this seed")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    end = time.monotonic() + asked.seconds
    while True:
        seed = secrets.randbits(32) if asked.seed is None else asked.seed
        print(f"seed {seed}", flush=True)
        status = explore_once(seed, asked.workers)
        if status:
            print(f"failed; to repeat it: python -m tests.explore --seed {seed}", flush=True)
            return status
        if asked.seed is not None or time.monotonic() >= end:
            return 0


if __name__ == "__main__":
    sys.exit(main())
