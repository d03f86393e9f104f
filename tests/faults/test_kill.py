"""The server is killed at random moments under load: what it acknowledged is there, nothing is half there or twice."""

import random
import time
from pathlib import Path

import pytest

from tests.faults.conftest import Form
from tests.faults.processes import at_once, replicas
from tests.faults.scenario import Scenario

pytestmark = pytest.mark.faults


def test_kill_9_under_load(url: str, tmp_path: Path, times: Form) -> None:
    """On PostgreSQL there are two replicas, of which one is killed, or both."""
    number = 1 if url.startswith("sqlite") else 2
    random_ = random.Random(20)
    helpers = str(times(0, 2))  # each start of them takes seconds
    with (
        replicas(tmp_path, number, database_url=url, helper_processes=helpers) as servers,
        servers[0].client() as client,
    ):
        scenario = Scenario(servers, client, url)
        scenario.open()
        turns = times(3 if number == 1 else 2, 50)
        for turn in range(turns):
            with scenario.load(turn) as load:
                load.wait_for(load.final, random_.randint(10, 100))
                time.sleep(random_.random() / 50)  # any moment of a request, not only that after an answer
                victims = random_.sample(servers, random_.randint(1, number))
                for victim in victims:
                    victim.kill()
                at_once(victim.start for victim in victims)
                scenario.end(load, {None})
            if turn % times(1, 5) == 0 or turn == turns - 1:  # what was damaged stays so
                scenario.check(random_.sample(load.operations, 10))
        replayed = sum(one.answer is not None and one.answer.replayed for one in scenario.interrupted())
        assert scenario.interrupted()
        print(
            f"{len(scenario.done)} operations, {len(scenario.interrupted())} of them interrupted and asked again,"
            f" which had happened in {replayed} cases"
        )
