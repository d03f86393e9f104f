"""The nodes that there are, and that no other module asks which of them it has."""

import pkgutil
from pathlib import Path

import service
from service.privacy import plans
from service.privacy.plans import NODES
from tests.privacy.plans.test_nodes import EXAMPLES
from tests.privacy.questions import questions

_PRIVACY = Path(service.__file__).parent / "privacy"
_ASK = {
    # A level of a SafeTab plan is known by its shape: a choice between a mechanism and a sequence of two, of which
    # each may be alone in a parallel.
    "privacy/planning/levels.py": 3,
}
"""Lines that ask for the type of a node, by file, with the reason."""
_NO_NODE = {"Condensed", "Neighbouring", "Node", "Plan", "Priced"}


def test_every_node_has_a_module_an_entry_and_an_example() -> None:
    others = {"base", "composition_program", "condensed", "notation", "tagged", "walking"}
    modules = {module.name for module in pkgutil.iter_modules(plans.__path__)} - others
    assert modules == set(NODES)
    for name, kind in NODES.items():
        assert name == kind.TYPE
        assert kind.__module__ == f"{plans.__name__}.{name}"
    assert {type(example) for example in EXAMPLES} == set(NODES.values())


def test_no_other_module_asks_for_the_type_of_a_node() -> None:
    found = questions("service.privacy.plans", _NO_NODE, _PRIVACY / "plans")
    assert found == _ASK
