"""The installation's secret: its file, its uses, and the database that belongs to it."""

import base64
import hashlib
import hmac
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from service.errors import StartupRefused
from service.ledger.access.keys import add_bootstrap_key
from service.ledger.installation.binding import check_secret, is_bound
from service.ledger.storage import clock
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.secret import Secret, load_secret
from service.ledger.verification.verify_installation import verify_installation
from tests.ledger.writing import run
from tests.processes import together

ROOT = Path(__file__).resolve().parents[3]
KEY = bytes(range(224, 256))  # its base64 needs both characters in which the two alphabets differ


def test_a_secret_is_made_where_there_is_none_and_read_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "below" / "service.secret"
    made = load_secret(path, make=True)
    assert len(made.key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_secret(path, make=True) == made
    assert list(path.parent.iterdir()) == [path]  # no draft is left behind
    assert load_secret(tmp_path / "another", make=True) != made


@pytest.mark.parametrize(
    "text_of_file",
    [
        KEY.hex(),
        KEY.hex().upper() + "\n",
        base64.b64encode(KEY).decode() + "\n",
        base64.b64encode(KEY).decode().rstrip("="),
        f"  {base64.urlsafe_b64encode(KEY).decode()}\r\n",
    ],
)
def test_a_secret_may_be_hexadecimal_or_base64(tmp_path: Path, text_of_file: str) -> None:
    path = tmp_path / "service.secret"
    path.write_text(text_of_file)
    path.chmod(0o640)  # a group of its own is how containers are given it
    assert load_secret(path, make=True).key == KEY


def test_a_secret_that_every_user_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "service.secret"
    path.write_text(KEY.hex())
    path.chmod(0o604)
    with pytest.raises(StartupRefused, match=r"every user of this machine: .* chmod o-r") as refused:
        load_secret(path, make=True)
    assert KEY.hex() not in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"swordfish", KEY, KEY[:31].hex().encode(), KEY.hex().encode() + b"00", base64.b64encode(KEY + b"a")],
)
def test_a_malformed_secret_is_refused_and_neither_quoted_nor_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "service.secret"
    path.write_bytes(content)
    with pytest.raises(StartupRefused) as refused:
        load_secret(path, make=True)
    assert "swordfish" not in str(refused.value)
    assert path.read_bytes() == content


def test_a_secret_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupRefused):
        load_secret(tmp_path, make=True)  # a directory
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupRefused):
        load_secret(tmp_path / "file" / "service.secret", make=True)


def test_processes_that_start_together_share_one_secret(tmp_path: Path) -> None:
    path = tmp_path / "service.secret"
    load = "print(load_secret(Path(sys.argv[1]), make=True).key.hex())"
    imports = "from pathlib import Path; from service.ledger.storage.secret import load_secret"
    keys = {one.stdout.strip() for one in together(imports, load, str(path))}
    assert keys == {load_secret(path, make=True).key.hex()}
    assert list(tmp_path.iterdir()) == [path]


def test_threads_that_start_together_share_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        found = set(threads.map(lambda _: load_secret(tmp_path / "service.secret", make=True), range(64)))
    assert len(found) == 1


def test_the_hmac_is_that_of_the_length_prefixed_parts() -> None:
    """Against the standard library, over the frame written out by hand."""
    frame = b"\x00\x00\x00\x00\x00\x00\x00\x03use\x00\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x00\x00\x00\x00\x00\x00"
    assert Secret(KEY).hmac("use", b"a", b"") == hmac.new(KEY, frame, hashlib.sha256).digest()


def test_no_two_lists_of_parts_give_one_hmac() -> None:
    secret = Secret(KEY)
    codes = [
        secret.hmac("use"),
        secret.hmac("use", b""),
        secret.hmac("use", b"", b""),
        secret.hmac("use", b"ab"),
        secret.hmac("use", b"a", b"b"),
        secret.hmac("use", b"", b"ab"),
        secret.hmac("us", b"eab"),
        secret.hmac("other", b"ab"),
    ]
    assert len(set(codes)) == len(codes)


def test_a_secret_is_not_shown() -> None:
    secret = Secret(KEY)
    for shown in (repr(secret), str(secret), f"{secret}"):
        assert "xe0" not in shown
        assert KEY.hex() not in shown


def test_a_database_belongs_to_its_first_secret(database: Database, secret: Secret) -> None:
    check_secret(database, secret)
    check_secret(database, secret)
    other = Secret(KEY)
    with pytest.raises(StartupRefused):
        check_secret(database, other)
    check_secret(database, secret)  # the other one has not taken its place
    with database.read() as connection:
        ((_, fingerprint, created_at),) = connection.execute(text("SELECT * FROM installation")).all()
    assert secret.key.hex() not in fingerprint
    assert clock.is_stamp(created_at)


@pytest.mark.parametrize("stored", ["", "é", "5", "f" * 63])
@pytest.mark.parametrize("bind_new", [True, False])
def test_what_is_no_fingerprint_is_refused_in_words(
    database: Database, secret: Secret, stored: str, bind_new: bool
) -> None:
    check_secret(database, secret)
    change = text("UPDATE installation SET secret_fingerprint = :stored")
    database.write(lambda connection: connection.execute(change, {"stored": stored}), is_committed=lambda *_: False)
    with pytest.raises(StartupRefused, match="expects what is no fingerprint"):
        check_secret(database, secret, bind_new=bind_new)


@pytest.mark.parametrize("bind_new", [True, False])
def test_a_row_that_was_added_is_named_as_the_fault(database: Database, secret: Secret, bind_new: bool) -> None:
    check_secret(database, secret)
    stored = f"'{Secret(KEY).fingerprint()}', '2026-01-01T00:00:00.000000Z'"
    run(database, f"INSERT INTO installation VALUES (2, {stored})")
    check_secret(database, secret, bind_new=bind_new)
    run(database, f"INSERT INTO installation VALUES (-1, {stored})")
    with pytest.raises(StartupRefused, match=r"installation has 3 rows, and the service writes one: .* delete those"):
        check_secret(database, secret, bind_new=bind_new)


def test_a_new_database_is_looked_at_without_being_bound(database: Database, secret: Secret) -> None:
    check_secret(database, secret, bind_new=False)
    assert not is_bound(database)
    with database.read() as connection:
        assert list(verify_installation(connection, secret)) == []
    check_secret(database, secret)
    database.write(
        lambda connection: add_bootstrap_key(connection, secret, "b" * 32, clock.now()), is_committed=lambda *_: False
    )
    database.write(
        lambda connection: connection.execute(text("DELETE FROM installation")), is_committed=lambda *_: False
    )
    with database.read() as connection:
        assert list(verify_installation(connection, secret)) == [
            "installation: expected one row, of id 1, with the fingerprint of the secret"
        ]


def test_of_two_secrets_that_start_together_one_is_refused(database_url: str, secret: Secret) -> None:
    def start(candidate: Secret) -> bool:
        database = open_database(database_url)
        try:
            check_secret(database, candidate)
        except StartupRefused:
            return False
        else:
            return True
        finally:
            database.close()

    with ThreadPoolExecutor(6) as threads:
        candidates = [secret, Secret(KEY)] * 3
        accepted = list(threads.map(start, candidates))
    assert len({candidate for candidate, good in zip(candidates, accepted, strict=True) if good}) == 1
    assert sum(accepted) == 3
