"""Examples of a mechanism, handed to the tests of its class."""

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    examples = getattr(metafunc.cls, "EXAMPLES", None)
    if examples is None:
        return
    if "mechanism" in metafunc.fixturenames:
        metafunc.parametrize("mechanism", examples, ids=[one.name for one in examples])
    if "with_law" in metafunc.fixturenames:
        with_law = [one for one in examples if one.loss_law() is not None]
        metafunc.parametrize("with_law", with_law, ids=[one.name for one in with_law])
