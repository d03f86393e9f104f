"""Examples of mechanisms, from their test classes: what other tests try a mechanism on that they do not name."""

import importlib
from collections.abc import Sequence
from typing import Any

from service.privacy.mechanisms import Mechanism


def contract_of(kind: type[Mechanism]) -> Any:
    """Return the class of a mechanism's tests: ``Test<Class>`` in ``test_<type>.py``."""
    return getattr(importlib.import_module(f"tests.privacy.mechanisms.test_{kind.TYPE}"), f"Test{kind.__name__}")


def examples(kind: type[Mechanism]) -> Sequence[Mechanism]:
    """Return the examples of a mechanism's tests."""
    found: Sequence[Mechanism] = contract_of(kind).EXAMPLES
    return found
