"""Two processes over one database are one ledger: they start together, never overspend, and replay each other."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.api.calls import Answer, charge, json_of, make_key, open_account, problem_of, pure
from tests.processes import Served, service


def _charge(replica: Served, key: str | None = None) -> Answer:
    headers = {} if key is None else {"Idempotency-Key": key}
    body = {"name": "a release", "plan": pure("0.1")}
    return replica.client.post("/v1/accounts/people/releases", json=body, headers=headers)


def test_two_replicas_are_one_ledger(tmp_path: Path, empty_database_url: str) -> None:
    """On an empty database both migrate it, both bind it to the secret that both make, and one adds the first key."""
    with ThreadPoolExecutor(16) as threads:
        one, two = (service(tmp_path, database_url=empty_database_url) for _ in range(2))
        starts = [threads.submit(replica.__enter__) for replica in (one, two)]
        try:
            replicas = [start.result() for start in starts]
            open_account(replicas[0].client, budget={"definition": "pure", "epsilon": 3})

            answers = list(threads.map(lambda number: _charge(replicas[number % 2]), range(40)))
            assert Counter(answer.status_code for answer in answers) == {201: 30, 409: 10}
            seqs = sorted(json_of(answer, 201)["head"]["seq"] for answer in answers if answer.is_success)
            assert seqs == [*range(2, 32)]  # no refusal came before the last success

            wider = {"budget": {"definition": "pure", "epsilon": "3.1"}}
            json_of(replicas[1].client.patch("/v1/accounts/people", json=wider))
            answers = list(threads.map(lambda number: _charge(replicas[number % 2], "k"), range(10)))
            assert {answer.status_code for answer in answers} == {201}
            assert len({answer.content for answer in answers}) == 1
            problem_of(charge(replicas[0].client, pure("1e-9")), "budget_exceeded")

            headers = make_key(replicas[0].client, "auditor")
            heads = [json_of(replica.client.get("/v1/accounts/people/head", headers=headers)) for replica in replicas]
            assert heads[0] == heads[1]
            assert heads[0]["seq"] == 1 + 30 + 10 + 1 + 1 + 1  # opened, charged, refused, widened, charged, refused
        finally:
            for replica in (one, two):
                replica.__exit__(None, None, None)
