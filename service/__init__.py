"""A privacy-budget ledger for statistical agencies."""

import os

__version__ = "0.5.0"

# Requests are what runs in parallel here: where matrix products start threads of their own beside them, they wait
# for one another, a hundred times as long as they take. numpy reads it when it is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
