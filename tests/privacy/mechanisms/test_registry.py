"""The mechanisms that there are, and that no other module asks which of them it has."""

import pkgutil
from pathlib import Path

import service
from service.privacy import mechanisms
from service.privacy.mechanisms import MECHANISMS
from tests.privacy.mechanisms.contract import MechanismContract
from tests.privacy.mechanisms.examples import contract_of, examples
from tests.privacy.questions import questions

_SERVICE = Path(service.__file__).parent
_ASK = {
    # A search for the least noise of one family: the family is the question.
    "privacy/planning/least_noise.py": 6,
    "api/computations/noise_calibration.py": 4,
    # A margin is met by another formula for each law.
    "privacy/planning/allocation.py": 11,
    "privacy/planning/safetab.py": 2,
}
"""Lines that ask for the type of a mechanism, by file, with the reason."""


def test_every_mechanism_has_a_module_an_entry_and_the_contract() -> None:
    modules = {module.name for module in pkgutil.iter_modules(mechanisms.__path__)} - {"base"}
    assert modules == set(MECHANISMS)
    for name, kind in MECHANISMS.items():
        assert name == kind.TYPE
        assert kind.__module__ == f"{mechanisms.__name__}.{name}"
        assert {type(example) for example in examples(kind)} == {kind}
        assert issubclass(contract_of(kind), MechanismContract)


def test_no_other_module_asks_for_the_type_of_a_mechanism() -> None:
    found = questions("service.privacy.mechanisms", {"Mechanism"}, _SERVICE / "privacy" / "mechanisms")
    assert found == _ASK
