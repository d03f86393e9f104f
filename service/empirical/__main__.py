"""An experiment in a process of its own. It reads parameters as JSON from standard input and writes lines of JSON."""

import json
import sys
from typing import Any

from service.empirical.experiments import run
from service.empirical.notation import experiment_of


def main() -> None:
    """Run the experiment. Write lines of ``progress``, then one of ``result``, or of ``refused`` with the reason."""
    try:
        write_line("result", run(experiment_of(json.load(sys.stdin)), lambda part: write_line("progress", part)))
    except ValueError as error:  # the message is about the parameters, which are not confidential
        write_line("refused", str(error))


def write_line(kind: str, value: Any) -> None:
    """Write one line of JSON to standard output."""
    sys.stdout.write(json.dumps({kind: value}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
