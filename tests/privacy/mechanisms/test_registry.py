"""The mechanisms that there are, and that no other module asks which of them it has."""

import pkgutil
from pathlib import Path

import service
from service.privacy import mechanisms
from service.privacy.mechanisms import MECHANISMS, mechanism_label
from tests.privacy.mechanisms.contract import MechanismContract
from tests.privacy.mechanisms.examples import contract_of, examples
from tests.privacy.questions import questions

_SERVICE = Path(service.__file__).parent


def test_every_mechanism_has_a_module_an_entry_and_the_contract() -> None:
    modules = {module.name for module in pkgutil.iter_modules(mechanisms.__path__)} - {"base", "moves", "new_keys"}
    assert modules == set(MECHANISMS)
    for name, kind in MECHANISMS.items():
        assert name == kind.TYPE
        assert kind.__module__ == f"{mechanisms.__name__}.{name}"
        assert {type(example) for example in examples(kind)} == {kind}
        assert issubclass(contract_of(kind), MechanismContract)
        assert mechanism_label(name) == kind.LABEL
        assert kind.PARAMETER is None or [field.name for field in kind.FIELDS] == [kind.PARAMETER]


def test_no_other_module_asks_for_the_type_of_a_mechanism() -> None:
    assert questions("service.privacy.mechanisms", {"Mechanism"}, _SERVICE / "privacy" / "mechanisms") == {}
