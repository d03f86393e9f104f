"""The file of the high-water mark: nobody without the secret writes or edits it, and journals only advance in it."""

import sqlite3
import stat
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest

from service.errors import Conflict
from service.ledger.installation import high_water
from service.ledger.installation.high_water import BrokenMark, HighWaterFile
from service.ledger.journal.journal import Head
from service.ledger.storage.secret import Secret
from tests.ledger.charging import SECRET

AT, LATER = "2026-01-02T00:00:00.000000Z", "2026-01-02T00:00:01.000000Z"


def _head(seq: int, letter: str = "a") -> Head:
    return Head(seq, letter * 64)


def _edit(file: HighWaterFile, statement: str) -> None:
    with closing(sqlite3.connect(file.path)) as raw, raw:
        raw.execute(statement)


def _write(file: HighWaterFile, heads: dict[str, Head], at: str) -> None:
    assert file.advance(heads, file.marked(heads), at) == set()


def test_there_is_none_at_first(file: HighWaterFile) -> None:
    assert file.read() is None
    assert not file.path.exists(), "reading makes none"


def test_it_holds_the_latest_head_of_each_journal(file: HighWaterFile) -> None:
    _write(file, {"people": _head(3), "": _head(2)}, AT)
    _write(file, {"people": _head(5, "b"), "places": _head(1)}, LATER)
    mark = file.read()
    assert mark is not None
    assert mark.heads == {"": _head(2), "people": _head(5, "b"), "places": _head(1)}
    assert (mark.entries, mark.written_at, mark.in_use) == (8, LATER, True)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_no_journal_goes_back_in_it_nor_does_its_time(file: HighWaterFile) -> None:
    _write(file, {"people": _head(5), "places": _head(2)}, LATER)
    _write(file, {"people": _head(4), "places": _head(2)}, AT)
    _write(file, {"people": _head(5, "b")}, AT)
    assert file.marked(["people", "nobody"]) == {"people": _head(5)}
    mark = file.read()
    assert mark is not None
    assert (mark.heads["people"], mark.written_at) == (_head(5), LATER)


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE heads SET seq = 3 WHERE journal = 'people'",
        f"UPDATE heads SET hash = '{'b' * 64}' WHERE journal = 'people'",
        "UPDATE heads SET journal = 'others' WHERE journal = 'people'",
        "DELETE FROM heads WHERE journal = 'people'",
        f"INSERT INTO heads VALUES ('new', 1, '{'c' * 64}')",
        "UPDATE heads SET seq = 5 - seq",  # the sum of the entries stays
        "UPDATE mark SET entries = entries - 1",
        "UPDATE mark SET journals = 1",
        "UPDATE mark SET digest = '00'",
        "UPDATE mark SET written_at = '2020-01-01T00:00:00.000000Z'",
        "UPDATE mark SET in_use = 0",
        "UPDATE mark SET seal = ''",
        "UPDATE heads SET seq = 'four'",
        "UPDATE mark SET digest = 'none'",
        "DROP TABLE heads",
    ],
)
def test_an_edited_file_is_refused(file: HighWaterFile, edit: str) -> None:
    _write(file, {"people": _head(4), "places": _head(1)}, AT)
    _edit(file, edit)
    with pytest.raises(BrokenMark, match="cannot be used"):
        file.read()


def test_a_file_of_another_installation_is_refused_and_not_written(file: HighWaterFile) -> None:
    _write(file, {"people": _head(4)}, AT)
    other = HighWaterFile(file.path, Secret(b"x" * 32))
    for act in (other.read, lambda: other.advance({"people": _head(9)}, {}, LATER)):
        with pytest.raises(BrokenMark, match="not written with this installation's secret"):
            act()
    mark = file.read()
    assert mark is not None
    assert mark.heads == {"people": _head(4)}


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + b"\0" * 100])
def test_what_is_no_such_file_is_refused(file: HighWaterFile, content: bytes) -> None:
    file.path.write_bytes(content)
    with pytest.raises(BrokenMark, match="cannot be used"):
        file.read()


def test_a_place_that_cannot_be_written_is_told_with_the_setting(tmp_path: Path, secret: Secret) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokenMark, match="SERVICE_HIGH_WATER_FILE"):
        HighWaterFile(tmp_path / "file" / "mark", secret).advance({}, {}, AT)


def test_an_operator_begins_it_anew(file: HighWaterFile) -> None:
    _write(file, {"people": _head(4), "places": _head(1)}, LATER)
    _edit(file, "UPDATE mark SET seal = ''")
    file.replace({"people": _head(2)}, AT)
    mark = file.read()
    assert mark is not None
    assert (mark.heads, mark.entries, mark.written_at) == ({"people": _head(2)}, 2, AT)


def test_only_the_named_heads_are_forgotten(file: HighWaterFile) -> None:
    _write(file, {"people": _head(4), "places": _head(1), "": _head(2)}, LATER)
    for missing in ({"people": _head(3)}, {"people": _head(4), "others": _head(1)}):
        with pytest.raises(Conflict, match="moved at the same moment"):
            file.forget(missing, {}, AT)
    _write(file, {"places": _head(5)}, LATER)  # by a server, since the mark was read
    file.forget({"people": _head(4), "": _head(2)}, {"people": _head(2), "": _head(3)}, AT)
    mark = file.read()
    assert mark is not None
    assert mark.heads == {"people": _head(2), "places": _head(5), "": _head(3)}
    assert (mark.entries, mark.written_at, mark.in_use) == (10, AT, True)


def test_a_head_that_moved_since_it_was_read_is_left(file: HighWaterFile) -> None:
    _write(file, {"people": _head(4), "places": _head(1)}, AT)
    moved = file.advance({"people": _head(6), "places": _head(3)}, {"people": _head(3), "places": _head(1)}, AT)
    assert moved == {"people"}
    assert file.marked(["people", "places"]) == {"people": _head(4), "places": _head(3)}


def test_a_file_that_another_process_has_just_created_has_no_heads(file: HighWaterFile) -> None:
    file.path.touch()
    assert file.marked(["people"]) == {}
    assert file.moved_since(0) == (0, {})
    assert file.read() is None


def _advance_often(path: Path, key: bytes, number: int) -> None:
    file = HighWaterFile(path, Secret(key))
    for seq in range(1, 26):
        file.advance(
            {"shared": _head(seq), f"own {number}": _head(seq)},
            file.marked({"shared": _head(seq), f"own {number}": _head(seq)}),
            AT,
        )


def test_processes_that_share_it_lose_nothing(file: HighWaterFile) -> None:
    context = get_context("forkserver")  # as helpers, so that one that was started for them serves here too
    context.set_forkserver_preload(["service.app"])
    processes = [context.Process(target=_advance_often, args=(file.path, file.secret.key, n)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    mark = file.read()
    assert mark is not None
    assert mark.heads == {name: _head(25) for name in ("shared", "own 0", "own 1", "own 2")}


def test_other_processes_learn_which_heads_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(high_water, "_MOVES", 3)
    file = HighWaterFile(tmp_path / "mark", SECRET)
    assert file.moved_since(0) == (0, {})
    heads = {name: _head(1) for name in "abcd"}
    file.advance(heads, {}, AT)
    assert file.moved_since(0) == (4, heads), "the first movement is not listed any more"
    assert file.moved_since(2) == (4, {name: _head(1) for name in "cd"})
    assert file.moved_since(4) == (4, {})
    file.advance({"a": _head(2)}, heads, AT)
    file.advance({"a": _head(1)}, heads | {"a": _head(2)}, AT)
    assert file.moved_since(4) == (5, {"a": _head(2)})
    assert file.moved_since(9) == (5, heads | {"a": _head(2)}), "the file is another one"
    assert file.moved_since(high_water.BEFORE_ALL) == (5, heads | {"a": _head(2)})
    assert HighWaterFile(tmp_path / "none", SECRET).moved_since(4) == (0, {})
    with closing(sqlite3.connect(file.path)) as older:  # as version 0.6.0 wrote it
        older.execute("DROP TABLE moves")
    assert file.moved_since(high_water.BEFORE_ALL) == (0, heads | {"a": _head(2)})
    assert file.moved_since(0) == (0, {})
    file.replace({"a": _head(3)}, AT)
    assert file.moved_since(5)[1] == {"a": _head(3)}, "no movement of a new file is taken for an old one"
