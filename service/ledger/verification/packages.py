"""Publication packages, checked without any database: signature, files, receipt, and noisy counts against entries."""

import csv
import hashlib
import io
import json
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, BinaryIO

import numpy as np
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it publishes no types

from service.ledger.draws.count_codec import digest
from service.ledger.draws.journalled_partitions import greatest_numbers
from service.ledger.installation.signing import BadSignature, check_signature
from service.ledger.journal import canonical_json, journal
from service.ledger.journal.entries import Drawn, read
from service.ledger.verification.receipts import check_receipt
from service.ledger.verification.zip_layout import require_nothing_else
from service.privacy.mechanisms import Mechanism
from service.privacy.planning.levels import find_level
from service.privacy.plans import Plan
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import mechanisms_of

STATEMENT = "publication package"
MANIFEST, RECEIPT, PLAN, DRAWS = "manifest.json", "receipt.json", "plan.json", "draws.jsonl"
COUNTS, GROUPS = "noisy-counts", "tabulations"
"""Names of tables, each of which is there as CSV and as Parquet if the release has such draws."""

_LARGEST_MANIFEST = 1 << 20  # bytes
_PIECE = 1 << 20  # bytes that are read at a time
_ROWS = 1 << 16  # of a table that are compared at a time


def manifest_text(manifest: dict[str, Any]) -> str:
    """Return a manifest as it stands in the archive."""
    return json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"


def check_package(file: BinaryIO, public_key: str) -> dict[str, Any]:
    """Check a publication package, and return its manifest.

    The holder of the public key's secret signed the list of the files, each file is as the list states it, and the
    archive has nothing beside them. The receipt is valid, and states the plan of the package. Each draw has the journal
    entry that it states, of this release; its noisy counts, in CSV and in Parquet, are those whose hash the entry has.
    The draws are for as many partitions as the receipt states, except where tabulations have more.

    Args:
        file: a ZIP archive, which can be rewound.
        public_key: of the installation.

    Raises:
        BadSignature: the text says what is wrong.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            manifest = _read_manifest(archive, public_key)
            _check_files(archive, manifest)
            require_nothing_else(file, archive.infolist(), manifest["issued_at"])
            receipt = _json(archive, RECEIPT)
            check_receipt(receipt, public_key)
            _check_facts(manifest, receipt, _json(archive, PLAN))
            _check_draws(archive, receipt)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, struct.error):
        raise BadSignature("a file of the package is not as the service writes it") from None
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError) as broken:
        raise BadSignature(f"expected a whole ZIP archive: {broken}") from None
    return manifest


def _read_manifest(archive: zipfile.ZipFile, public_key: str) -> dict[str, Any]:
    names = archive.namelist()
    if names.count(MANIFEST) != 1 or len(set(names)) != len(names):
        raise BadSignature(f"expected each file once, and {MANIFEST} among them")
    with archive.open(MANIFEST) as opened:  # what the archive says of its size is not signed
        text = opened.read(_LARGEST_MANIFEST + 1)
    if len(text) > _LARGEST_MANIFEST:
        raise BadSignature(f"expected {MANIFEST} with at most {_LARGEST_MANIFEST} bytes")
    manifest = canonical_json.load_once(text)
    if not isinstance(manifest, dict):
        raise BadSignature(f"expected an object in {MANIFEST}")
    check_signature(manifest, STATEMENT, public_key)
    return manifest


def _check_files(archive: zipfile.ZipFile, manifest: dict[str, Any]) -> None:
    listed = {file["name"]: file for file in manifest["files"]}
    unlike = sorted(listed.keys() ^ (set(archive.namelist()) - {MANIFEST}))
    if unlike:
        raise BadSignature(f"{unlike[0]} is not both in the archive and in {MANIFEST}")
    for name, stated in listed.items():
        found, size = hashlib.sha256(), 0
        with archive.open(name) as opened:
            while size <= stated["bytes"] and (piece := opened.read(_PIECE)):
                found.update(piece)
                size += len(piece)
        if (size, found.hexdigest()) != (stated["bytes"], stated["sha256"]):
            raise BadSignature(f"{name} is not the file that {MANIFEST} states")


def _json(archive: zipfile.ZipFile, name: str) -> Any:
    return canonical_json.load_once(archive.read(name))


def _check_facts(manifest: dict[str, Any], receipt: dict[str, Any], plan: Any) -> None:
    """Compare what the files say of the release.

    Raises:
        BadSignature: two of them differ.
    """
    release = receipt["release"]
    if release["state"] != "committed":
        raise BadSignature("the receipt is not of a committed release")
    stated = (manifest["account"], manifest["release"], manifest["head"], manifest["public_key"])
    if stated != (receipt["account"], release["id"], receipt["head"], receipt["public_key"]):
        raise BadSignature(f"{MANIFEST} and {RECEIPT} are about different releases or heads")
    if plan != release["plan"]:
        raise BadSignature(f"{PLAN} is not the plan of {RECEIPT}")


def _check_draws(archive: zipfile.ZipFile, receipt: dict[str, Any]) -> None:
    """Compare the entries of the draws with the tables of noisy counts, and with the receipt's counters."""
    plan = read_plan(receipt["release"]["plan"])
    mechanisms = {one.name or "": one for one in mechanisms_of(plan)}
    levels, partitions = set[str](), Counter[tuple[str, int]]()
    expected: dict[str, dict[str, tuple[Drawn, Mechanism]]] = {COUNTS: {}, GROUPS: {}}
    with archive.open(DRAWS) as lines:
        for line in io.TextIOWrapper(lines, "utf-8"):
            stated = canonical_json.load_once(line)
            drawn = _drawn(stated, receipt)
            table = COUNTS if drawn.level is None else GROUPS
            if drawn.level is not None:
                levels.add(drawn.level)
            elif drawn.partition:
                partitions[drawn.mechanism, drawn.repetition] += 1
            if stated["noisy_removed_at"] is None:
                expected[table][drawn.draw] = drawn, mechanisms[drawn.mechanism]
    _check_partitions(plan, levels, partitions, receipt)
    for table, draws in expected.items():
        as_csv, as_parquet = f"{table}.csv", f"{table}.parquet"
        for name in (as_csv, as_parquet):
            if (name in archive.namelist()) != bool(draws):
                raise BadSignature(f"expected {name} where {DRAWS} has such draws, and only there")
        if draws:
            with archive.open(as_csv) as opened, archive.open(as_parquet) as exact:
                rows = _from_csv(opened)
                if any(mechanism.threshold is not None for _, mechanism in draws.values()):
                    rows = _with_keys(as_csv, rows, _from_parquet(exact))
                _compare(as_csv, draws, rows)
            with archive.open(as_parquet) as opened:
                _compare(as_parquet, draws, _from_parquet(opened))


def _check_partitions(plan: Plan, levels: set[str], listed: Counter[tuple[str, int]], receipt: dict[str, Any]) -> None:
    """Compare the numbers of drawn partitions with the receipt's.

    Args:
        levels: those with a tabulation. Its groups are not in its entry, so that the receipt has more.
        listed: the draws that are no tabulations, by mechanism and repetition.

    Raises:
        BadSignature: a number is another one.
    """
    places = [find_level(plan, name) for name in levels]
    tabulated = {one.name for place in places if place for one in (place.total, place.step_1, place.step_2)}
    found = greatest_numbers(listed)
    stated = {one["mechanism"]: one["drawn"] for one in receipt["partitions"]}
    for name in sorted(found.keys() | stated.keys()):
        here, there = found.get(name, 0), stated.get(name, 0)
        if here > there or (here < there and name not in tabulated):
            raise BadSignature(f"{DRAWS} has draws for {here} partitions of {name!r}, but {RECEIPT} for {there}")


def _drawn(stated: dict[str, Any], receipt: dict[str, Any]) -> Drawn:
    """Return what the entry of a draw states.

    Raises:
        BadSignature: it is not an entry of a draw of the release, or its hash is another one.
    """
    members = stated["entry"]
    if journal.entry_hash(stated["previous"], canonical_json.canonical(members)) != stated["hash"]:
        raise BadSignature(f"{DRAWS}: a hash is not that of the entry and the hash before it")
    entry = read(members)
    said, place = entry.content, (entry.account, entry.release)
    if not isinstance(said, Drawn) or place != (receipt["account"], receipt["release"]["id"]):
        raise BadSignature(f"{DRAWS}: an entry is not of a draw of the release")
    if not receipt["entry"]["seq"] < entry.seq <= receipt["head"]["seq"]:
        raise BadSignature(f"{DRAWS}: an entry is not between those of the charge and of the head")
    return said


_Rows = Iterator[tuple[str, Any, str | None]]
"""The draw of each row, its noisy count, and its key."""


def _from_csv(file: Any) -> _Rows:
    for row in csv.DictReader(io.TextIOWrapper(file, "utf-8", newline="")):
        yield row["draw"], row["noisy"], row.get("key") or None


def _from_parquet(file: Any) -> _Rows:
    with pq.ParquetFile(io.BytesIO(file.read())) as table:
        columns = [name for name in ("draw", "noisy", "key") if name in table.schema_arrow.names]
        for batch in table.iter_batches(_ROWS, columns=columns):
            lists = [batch.column(name).to_pylist() for name in columns]
            yield from zip(*lists, *([] if "key" in columns else [[None] * len(batch)]), strict=True)


def _with_keys(name: str, rows: _Rows, exact: _Rows) -> _Rows:
    """Yield the rows of a table as CSV, with the keys as Parquet has them: in CSV some have an apostrophe more.

    Raises:
        BadSignature: the keys are other ones.
    """
    for (_, _, key), (draw, noisy, shown) in zip(exact, rows, strict=False):  # what is left is compared by draw
        if (shown is None) is not (key is None) or (shown or "").replace("'", "") != (key or "").replace("'", ""):
            raise BadSignature(f"{name} has a key that the table as Parquet does not have")
        yield draw, noisy, key
    yield from rows


def _compare(name: str, draws: dict[str, tuple[Drawn, Mechanism]], rows: _Rows) -> None:
    """Compare the noisy counts of a table with the hashes of the entries, draw by draw.

    Raises:
        BadSignature: they are others, or of other draws.
    """
    left, present, units, keys = dict(draws), "", list[int](), list[str | None]()
    for draw, noisy, key in rows:
        if draw != present and present:
            _compare_draw(name, left.pop(present, None), units, keys)
            units, keys = [], []
        present = draw
        of = draws.get(draw)
        if of is not None:
            units.append(_in_units(noisy, of[1].unit))
            keys.append(key)
    if present:
        _compare_draw(name, left.pop(present, None), units, keys)
    if any(drawn.size for drawn, _ in left.values()):
        raise BadSignature(f"{name} lacks a draw that {DRAWS} has")


def _compare_draw(name: str, of: tuple[Drawn, Mechanism] | None, units: list[int], keys: list[str | None]) -> None:
    if of is None:
        raise BadSignature(f"{name} has counts of a draw that {DRAWS} does not have, or has them twice")
    drawn, mechanism = of
    stated = None if mechanism.threshold is None else [key or "" for key in keys]
    if (stated is None and any(keys)) or len(units) != drawn.size:
        raise BadSignature(f"{name}: the rows of draw {drawn.draw} are not those of its journal entry")
    if digest(np.array(units, np.int64), stated) != drawn.noisy_hash:
        raise BadSignature(f"{name}: the noisy counts of draw {drawn.draw} are not those of its journal entry")


def _in_units(noisy: int | str, unit: Fraction) -> int:
    """Return a noisy count in units of its granularity.

    Raises:
        ValueError: it is no multiple of it.
    """
    if unit == 1:
        return int(noisy)
    units = Fraction(noisy) / unit
    if units.denominator != 1:
        raise ValueError("expected a multiple of the granularity")
    return int(units)
