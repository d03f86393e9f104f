"""Examples of a mechanism, handed to the tests of its class."""

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    examples = getattr(metafunc.cls, "EXAMPLES", None)
    if examples is None:
        return
    if "mechanism" in metafunc.fixturenames:
        metafunc.parametrize("mechanism", examples, ids=str)
    if "with_law" in metafunc.fixturenames:
        metafunc.parametrize("with_law", [one for one in examples if one.loss_law() is not None], ids=str)
