"""The statements of a charge alone, by PostgreSQL's own load generator: no service could make more of them."""

import os
import subprocess
import tempfile
from pathlib import Path

from sqlalchemy import make_url

from benchmarks.load import Measured, measured
from tests.postgres_server import installed

# What the service sends for a small discrete Gaussian release, in texts of the same length. The account's row tells
# the number of the next entry, as there.
_CHARGE = """\
\\set account random(1, :accounts)
BEGIN;
SELECT head_seq + 1 AS seq, gen_random_uuid()::text AS release, name, unit, neighbouring, description, budget,
    admission, totals, state, created_at, head_hash FROM accounts WHERE id = :account ORDER BY id FOR UPDATE \\gset
INSERT INTO releases (id, account_id, seq, name, plan, tags, delta, state, price, accountant, created_at) VALUES
    (:release, :account, :seq, 'small', '{"type": "discrete_gaussian", "sigma_squared": "100"}', '[]', '1e-10',
    'committed', '{"epsilon": null, "rho": "1/200", "delta": "0", "linear": "1/200", "quanta": []}', '1',
    '2020-04-01T00:00:00.000000Z');
INSERT INTO journal (account_id, seq, kind, release_id, body, hash) VALUES
    (:account, :seq, 'committed', :release, repeat('x', 440), repeat('0', 64));
INSERT INTO spending (account_id, digest, subplan, occurrences, reserved) VALUES
    (:account, repeat('0', 64), '{"sigma_squared":"100","type":"discrete_gaussian"}', 1, 0)
    ON CONFLICT (account_id, digest) DO UPDATE SET occurrences = spending.occurrences + excluded.occurrences;
UPDATE accounts SET totals = totals, releases = releases + 1, head_seq = :seq, head_hash = repeat('0', 64)
    WHERE id = :account;
COMMIT;
"""


def pgbench(url: str, clients: int, accounts: int, seconds: int) -> Measured:
    """Run the statements on the first accounts of a database.

    Raises:
        RuntimeError: pgbench failed.
    """
    parsed = make_url(url)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        script = Path(directory, "charge.sql")
        script.write_text(_CHARGE)
        command = [
            *(str(installed() / "pgbench"), "--no-vacuum", "--protocol=prepared", f"--file={script}", "--log"),
            *(f"--client={clients}", f"--jobs={min(clients, 2)}", f"--time={seconds}", f"--define=accounts={accounts}"),
        ]
        connection = {
            "PGHOST": str(parsed.query["host"]),
            "PGUSER": parsed.username or "",
            "PGDATABASE": parsed.database or "",
        }
        done = subprocess.run(
            command, cwd=directory, env=os.environ | connection, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"pgbench failed: {done.stderr}")
        lines = [line for log in Path(directory).glob("pgbench_log.*") for line in log.read_text().splitlines()]
    # Each line: client, transaction, microseconds that it took, script, when.
    return measured([int(line.split()[2]) / 1e6 for line in lines], seconds)
