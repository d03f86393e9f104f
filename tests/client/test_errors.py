"""Errors of the client: one class for each problem of the service."""

import pickle

import pytest

from privacy_budget_ledger import Account, AsyncClient, Client, Problem, errors, plans
from service.api.http.problems import KINDS
from tests.api.calls import STEWARD
from tests.processes import Served


def test_each_problem_of_the_service_has_its_class() -> None:
    assert set(errors.PROBLEMS) == set(KINDS)
    assert len(set(errors.PROBLEMS.values())) == len(KINDS)


@pytest.mark.parametrize("code", sorted(KINDS))
def test_a_problem_becomes_an_error_of_its_class(code: str) -> None:
    members = {"type": f"/problems/{code}", "title": "A title", "detail": "a detail"}
    error = errors.problem_of(KINDS[code].status, members, 3.0)
    assert type(error) is errors.PROBLEMS[code]
    assert (str(error), error.code, error.status) == ("A title: a detail", code, KINDS[code].status)
    assert (error.detail, error.retry_after, error.members) == ("a detail", 3.0, members)


def test_a_problem_of_a_later_version_is_a_problem() -> None:
    error = errors.problem_of(418, {"type": "/problems/teapot", "title": "A teapot"})
    assert (type(error), error.code) == (Problem, "teapot")


def test_an_invalid_request_says_where_and_what_is_accepted(ledger: Client, account: Account) -> None:
    plan = plans.RandomizedResponse(epsilon="1")
    with pytest.raises(errors.InvalidRequest) as caught:
        ledger.register(account.name, name="answers", plan=plan)
    assert caught.value.errors == [("/plan/type", "expected replace_one for randomized_response, got add_remove")]
    assert caught.value.errors[0].pointer == "/plan/type"
    assert str(caught.value).endswith("/plan/type: expected replace_one for randomized_response, got add_remove")


def test_too_much_is_refused_with_figures(ledger: Client, account: Account) -> None:
    with pytest.raises(errors.BudgetExceeded) as caught:
        ledger.register(account.name, name="too much", plan=plans.DiscreteGaussian(rho="2"))
    assert caught.value.noise_multiplier_that_fits == 2
    (failure,) = caught.value.failures
    assert (failure["account"], failure["cap"], failure["requested"]) == (account.name, "rho", 2)
    assert ledger.account(account.name).remaining == account.remaining


def test_other_problems_are_typed(served: Served, ledger: Client) -> None:
    with pytest.raises(errors.NotFound):
        ledger.account("nobody")
    with Client(served.address, "pbl_nothing") as stranger, pytest.raises(errors.Unauthenticated):
        stranger.account("nobody")
    with pytest.raises(errors.MethodNotAllowed):
        ledger.request("DELETE", "/v1/principal")


def test_a_problems_own_members_have_names() -> None:
    drawn = errors.problem_of(409, {"type": "/problems/already_drawn", "draw": "an id"})
    assert isinstance(drawn, errors.AlreadyDrawn)
    assert drawn.draw == "an id"
    stated = {"type": "/problems/already_drawn", "title": "Drawn", "detail": "once", "draw": "an id"}
    at = "/v1/accounts/people/releases/r/draws"
    assert str(errors.problem_of(409, stated | {"instance": at})).endswith(
        "Drawn: once; the noisy counts are at GET /v1/accounts/people/draws/an id"
    )
    lacking = errors.problem_of(409, {"type": "/problems/incomplete", "missing": ["region"]})
    assert isinstance(lacking, errors.Incomplete)
    assert lacking.missing == ["region"]


def test_a_client_does_not_show_its_key(served: Served) -> None:
    with Client(served.address, STEWARD) as client:
        assert repr(client) == f"Client({served.address!r})"
    assert repr(AsyncClient(served.address, STEWARD)) == f"AsyncClient({served.address!r})"


def test_errors_are_sent_from_one_process_to_another(ledger: Client, account: Account) -> None:
    with pytest.raises(errors.BudgetExceeded) as caught:
        ledger.register(account.name, name="too much", plan=plans.DiscreteGaussian(rho="2"))
    failed = errors.ConnectionFailed("no answer")
    failed.idempotency_key = "mine"
    for error in (caught.value, failed):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.idempotency_key) == (type(error), str(error), error.idempotency_key)
        assert copy.idempotency_key
    assert pickle.loads(pickle.dumps(caught.value)).failures == caught.value.failures
