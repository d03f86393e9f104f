"""Arrow streams without HTTP: reading, answers, and safety for streams of any bytes."""

import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
import pytest

from service.api.arrow import metadata, streams
from service.api.arrow.streams import only_noisy, read_counts, with_noisy
from service.errors import InvalidInput, TooLarge
from tests.api.streams import batches_of, counts, stream, written

_MOST = 10**7
_ENDS = b"\xff\xff\xff\xff\0\0\0\0"


def _free(_: int) -> None:
    """Admit any reservation of memory."""


def _through(content: bytes, noisy: Any = None) -> bytes:
    """Return the answer to a stream; by default the noise adds one to each count."""
    read = read_counts(bytearray(content), _MOST, _free)
    whole = np.concatenate([batch.counts for batch in read.batches])
    return b"".join(with_noisy(read, whole + 1 if noisy is None else noisy))


def _every_type(rows: int, seed: int) -> dict[str, Any]:
    """Return columns of every kind of layout, with nulls that hide values, and the counts between them."""
    generator = np.random.default_rng(seed)
    floats = generator.integers(0, 2**63, rows).view("f8")  # some are NaNs with payloads
    hidden = pa.Array.from_buffers(
        pa.int32(), rows, [pa.py_buffer(b"\x55" * (rows // 8 + 1)), pa.py_buffer(np.arange(rows, dtype="<i4"))]
    )
    words = [None if i % 5 == 0 else "é" * (i % 4) for i in range(rows)]
    lists = [None if i % 7 == 0 else list(range(i % 3)) for i in range(rows)]
    return {
        "float": pa.array(floats),
        "hidden": hidden,
        "bool": pa.array(generator.integers(0, 2, rows).astype(bool)),
        "word": pa.array(words, pa.string()),
        "large": pa.array([word and word.encode() for word in words], pa.large_binary()),
        "view": pa.array(words, pa.string_view()),
        "count": pa.array(generator.integers(-(2**62), 2**62, rows, endpoint=True)),
        "list": pa.array(lists, pa.list_(pa.int16())),
        "struct": pa.array([{"count": i, "noisy": word} for i, word in enumerate(words)]),
        "map": pa.array([[(str(i), i)] for i in range(rows)], pa.map_(pa.string(), pa.int64())),
        "fixed": pa.array([[i, None] for i in range(rows)], pa.list_(pa.int16(), 2)),
        "union": pa.UnionArray.from_sparse(
            pa.array([i % 2 for i in range(rows)], pa.int8()),
            [pa.array(range(rows), pa.int64()), pa.array(words, pa.string())],
        ),
        "decimal": pa.array(range(rows), pa.int64()).cast(pa.decimal128(30, 2)),
        "time": pa.array(range(rows), pa.int64()).cast(pa.timestamp("ns", "Europe/Vienna")),
        "null": pa.nulls(rows),
        "runs": pa.RunEndEncodedArray.from_arrays(
            pa.array([rows] * bool(rows), pa.int32()), pa.array([7] * bool(rows), pa.int64())
        ),
        "uuid": pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([bytes([i % 256]) * 16 for i in range(rows)], pa.binary(16))
        ),
        "coded": pa.array(words, pa.string()).dictionary_encode(),
    }


def _bytes_of(column: Any) -> list[bytes | None]:
    if isinstance(column, pa.ExtensionArray):
        return _bytes_of(column.storage)
    buffers = [None if buffer is None else buffer.to_pybytes() for buffer in column.buffers()]
    return buffers + (_bytes_of(column.dictionary) if isinstance(column, pa.DictionaryArray) else [])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_other_columns_come_back_bit_for_bit(codec: str | None, last: bool) -> None:
    batches = [pa.record_batch(_every_type(rows, rows)) for rows in (100, 0, 1, 1000)]
    if last:  # after columns of every layout but a union's
        names = sorted(set(batches[0].schema.names) - {"union"}, key="count".__eq__)
        batches = [batch.select(names) for batch in batches]
    named = {b"note": b"\xff\0"}
    fields = [field.with_metadata({"of": field.name}) for field in batches[0].schema]
    schema = pa.schema(fields, metadata=named)
    content = written(
        schema, [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches], compression=codec
    )
    back = _through(content)
    old, new = pa.ipc.open_stream(content).schema, pa.ipc.open_stream(back).schema
    place = old.get_field_index("count")
    assert new.equals(old.set(place, old.field(place).with_name("noisy")), check_metadata=True)
    for before, after in zip(batches_of(content), batches_of(back), strict=True):
        for number, column in enumerate(before.batch.columns):
            same = after.batch.column(number)
            if number == place:
                assert (same.to_numpy() - column.to_numpy() == 1).all()
            else:
                assert same.type == column.type
                assert _bytes_of(same) == _bytes_of(column), old.field(number).name
    if codec is None:
        assert len(back) == len(content)


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_counts_are_compressed_as_they_came(codec: str | None) -> None:
    content = stream(
        {"count": pa.array(np.zeros(10**5, np.int64)), "after": pa.array(np.arange(10**5))}, compression=codec
    )
    back = _through(content)
    (found,) = batches_of(back)
    assert (found.batch["noisy"].to_numpy() == 1).all()
    assert (found.batch["after"].to_numpy() == np.arange(10**5)).all()
    assert len(back) - len(content) < 50_000  # of 800,000


def test_layouts_are_those_of_the_streams_version() -> None:
    """In version 4 runs have a buffer more than in version 5."""
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([7], pa.int64()))
    columns = {"runs": runs, "count": pa.array([1, 2]), "after": pa.array([3, 4])}
    for version in (pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5):
        (found,) = batches_of(_through(stream(columns, metadata_version=version)))
        assert [column.to_pylist() for column in found.batch.columns] == [[7, 7], [2, 3], [3, 4]]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compression_before_version_5_is_refused(codec: str) -> None:
    """pyarrow writes such a stream, but takes its compressed bytes for plain ones when it reads."""
    given = {"compression": codec, "metadata_version": pa.ipc.MetadataVersion.V4}
    with pytest.raises(InvalidInput, match="metadata version 4"):
        _through(stream({"count": pa.array(np.zeros(1000, np.int64))}, **given))


def test_batches_keep_their_metadata() -> None:
    batch = pa.record_batch({"count": pa.array([1, 2])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for number in range(3):
            writer.write_batch(batch, custom_metadata={"number": str(number)} if number else None)
    found = batches_of(_through(sink.getvalue().to_pybytes()))
    assert [part.custom_metadata for part in found] == [None, {b"number": b"1"}, {b"number": b"2"}]


@pytest.mark.parametrize("deltas", [True, False])
def test_dictionaries_that_grow_and_change(deltas: bool) -> None:
    words = [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"], ["z"]][: 3 if deltas else 4]
    batches = [
        pa.record_batch(
            {
                "word": pa.DictionaryArray.from_arrays(pa.array([len(known) - 1, 0], pa.int8()), pa.array(known)),
                "count": pa.array([1, 2]),
            }
        )
        for known in words
    ]
    content = written(batches[0].schema, batches, emit_dictionary_deltas=deltas)
    found = batches_of(_through(content))
    assert [part.batch["word"].dictionary.to_pylist() for part in found] == words
    assert [part.batch["word"].indices for part in found] == [batch["word"].indices for batch in batches]


def test_a_stream_of_noisy_counts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_ROWS", 3)
    found = batches_of(b"".join(only_noisy(np.arange(7))))
    assert [part.batch["noisy"].to_pylist() for part in found] == [[0, 1, 2], [3, 4, 5], [6]]


def test_an_answer_goes_out_a_mebibyte_at_a_time() -> None:
    batch = pa.record_batch({"count": np.arange(700_000), "text": pa.array(["x" * 3] * 700_000)})
    content = written(batch.schema, [batch, batch.slice(0, 10), batch])
    read = read_counts(bytearray(content), 10**8, _free)
    blocks = list(with_noisy(read, np.concatenate([batch.counts for batch in read.batches])))
    assert max(map(len, blocks)) <= 2**20
    assert len(blocks) < 2 * len(content) / 2**20
    assert b"".join(blocks) == content.replace(b"count", b"noisy", 1)


# Refusals


def _int64(values: list[Any]) -> Any:
    return pa.array(values, pa.int64())


_ONE = _int64([1])
# Two columns have the same values; the second is made to refer to the bytes of the first.
_TWO = stream({"count": _int64([7, 8]), "other": _int64([7, 8])})
_ALIASED = _TWO.replace(struct.pack("<4q", 0, 16, 16, 0), struct.pack("<4q", 0, 16, 0, 0))
_ALIASED = _ALIASED.replace(struct.pack("<2q", 16, 16), struct.pack("<2q", 0, 16))
assert _ALIASED != _TWO
_SCHEMA = pa.schema([("count", pa.int64())])
_LARGE = _int64([1, 2**63 - 1])
_UNION = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [_ONE])
_TWICE = pa.RecordBatch.from_arrays([_ONE] * 2, ["count"] * 2)
_WRONG: dict[str, tuple[bytes, str]] = {
    "empty": (b"", ""),
    "text": (b'{"counts": [1]}', ""),
    "only its end": (_ENDS, ""),
    "two columns in the same bytes": (_ALIASED, ""),
    "a file and not a stream": (b"ARROW1\0\0" + counts([1]), ""),
    "no count": (stream({"counts": _ONE}), "/count"),
    "no column": (stream({"Count": _ONE}), "/count"),
    "count below a struct": (stream({"x": pa.array([{"count": 1}])}), "/count"),
    "two counts": (written(_TWICE.schema, [_TWICE]), "/count"),
    "noisy beside it": (stream({"count": _ONE, "noisy": _ONE}), "/noisy"),
    "a union before it": (stream({"x": _UNION, "count": _ONE}), ""),
    "a list of unions before it": (stream({"x": pa.ListArray.from_arrays([0, 1], _UNION), "count": _ONE}), ""),
    "a null": (stream({"count": _int64([1, None])}), "/count"),
    "a null in the second batch": (
        written(_SCHEMA, [pa.record_batch({"count": part}) for part in (_ONE, _int64([None]))]),
        "/count",
    ),
    "no batch": (written(_SCHEMA, []), "/count"),
    "no row": (stream({"count": _int64([])}), "/count"),
    "too large": (counts([0, 2**62, 2**62 + 1]), "/count/2"),
    "too small": (counts([-(2**62), -(2**62) - 1]), "/count/1"),
    "the least": (counts([-(2**63)]), "/count/0"),
    "too large in the second batch": (
        written(_SCHEMA, [pa.record_batch({"count": part}) for part in (_ONE, _LARGE)]),
        "/count/2",
    ),
    "without its end": (counts([1])[:-8], ""),
    "half an end": (counts([1])[:-4], ""),
    "cut off": (counts([1, 2, 3])[:-20], ""),
    "a byte more": (counts([1]) + b"\0", ""),
    "two streams": (counts([1]) * 2, ""),
}  # fmt: skip


@pytest.mark.parametrize(("content", "pointer"), _WRONG.values(), ids=_WRONG)
def test_what_is_no_stream_of_counts(content: bytes, pointer: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_counts(bytearray(content), _MOST, _free)
    assert [fault.pointer for fault in refused.value.faults] == [pointer]


@pytest.mark.parametrize(
    "column",
    [
        *(pa.array([1]).cast(kind) for kind in (pa.int32(), pa.uint64(), pa.float64(), pa.string(), pa.decimal128(19))),
        pa.array([1]).dictionary_encode(),
        pa.array([[1]]),
    ],
    ids=lambda column: str(column.type),
)
def test_counts_of_another_type(column: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_counts(bytearray(stream({"count": column})), _MOST, _free)
    assert [fault.pointer for fault in refused.value.faults] == ["/count"]


def test_a_column_may_allow_nulls_and_have_none() -> None:
    (batch,) = read_counts(bytearray(counts([5])), _MOST, _free).batches
    assert batch.counts.tolist() == [5]


def test_every_truncation_is_refused() -> None:
    content = stream({"count": pa.array([1, 2]), "word": pa.array(["a", "b"]).dictionary_encode()})
    for length in range(len(content)):
        with pytest.raises(InvalidInput):
            read_counts(bytearray(content[:length]), _MOST, _free)


# Size limits


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_counts_that_unfold_to_too_much_are_refused_before_they_do(codec: str) -> None:
    zeros = pa.array(np.zeros(10**6, np.int64))
    batch = pa.record_batch({"count": zeros})
    packed = written(batch.schema, [batch, batch], compression=codec)
    assert len(packed) < 10**5
    for most in (8 * 10**6 - 1, 8 * 10**6, 16 * 10**6 - 1):
        with pytest.raises(TooLarge):
            read_counts(bytearray(packed), most, _free)
    assert read_counts(bytearray(packed), 16 * 10**6, _free).rows == 2 * 10**6
    claimed = bytearray(packed)
    at = packed.index(struct.pack("<q", 8 * 10**6))
    claimed[at : at + 8] = struct.pack("<q", 2**62)
    with pytest.raises(InvalidInput):
        read_counts(claimed, 16 * 10**6, _free)


def test_too_many_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "MOST_MESSAGES", 10)
    schema = pa.schema([("count", pa.int64())])
    for batches, fits in ((10, True), (11, False)):
        content = bytearray(written(schema, [pa.record_batch({"count": _ONE})] * batches))
        if fits:
            assert read_counts(content, _MOST, _free).rows == 10
        else:
            with pytest.raises(TooLarge):
                read_counts(content, _MOST, _free)


# Arbitrary bytes


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_no_damaged_stream_does_harm(codec: str | None) -> None:
    """A stream with changed bytes, most of them in metadata, is refused, or read as a stream that can be answered."""
    batches = [pa.record_batch(_every_type(rows, rows)) for rows in (9, 3)]
    content = written(batches[0].schema, batches, compression=codec)
    chance = random.Random(20100401)
    read = 0
    for _ in range(1500):
        damaged = bytearray(content)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(damaged))
            damaged[at] = chance.choice([0, 1, 8, 127, 128, 255, damaged[at] ^ 1 << chance.randrange(8)])
        try:
            _through(bytes(damaged))
            read += 1
        except (InvalidInput, TooLarge):
            pass
    assert 0 < read < 1500


def _few() -> list[bytes]:
    """Return small streams, which consist mostly of metadata."""
    few = pa.array(range(50), pa.int64())
    words, coded = pa.array(["a", "bb"] * 25), pa.array(["x", "y"] * 25).dictionary_encode()
    batch = pa.record_batch({"float": pa.array([1.5] * 50), "count": few})
    return [
        stream({"count": few}),
        stream({"count": few}, compression="zstd"),
        stream({"word": words, "count": few, "coded": coded}, compression="lz4"),
        stream({"word": words, "count": few, "view": words.cast(pa.string_view())}, compression="zstd"),
        written(batch.schema, [batch] * 3, compression="zstd"),
    ]


def test_whatever_is_read_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The charge comes between reading and answering: a stream that was read must have an answer."""
    chance, few, read = random.Random(21_359), _few(), 0
    numbers = [0, 1, 8, 50, 64, 400, -1, 2**31 - 1, 2**62]
    for _ in range(3000):
        damaged = bytearray(chance.choice(few))
        for _ in range(chance.choice([1, 1, 1, 2, 3])):
            at, size = chance.randrange(len(damaged)), chance.choice([1, 1, 1, 4, 8])
            at -= at % size
            number = damaged[at] ^ 1 << chance.randrange(8) if size == 1 else chance.choice(numbers)
            damaged[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
        try:
            found = read_counts(damaged, _MOST, _free)
        except (InvalidInput, TooLarge):
            continue
        noisy = np.arange(found.rows) * 3 - 2**40
        answer = b"".join(with_noisy(found, noisy))
        monkeypatch.setattr(streams, "COUNT", "noisy")
        monkeypatch.setattr(streams, "NOISY", "count")
        again = read_counts(answer, _MOST, _free)
        monkeypatch.undo()
        assert np.array_equal(np.concatenate([batch.counts for batch in again.batches]), noisy)
        read += 1
    assert 300 < read < 2700


def _repeated_text(number: int) -> bytes:
    """Return a schema whose columns and notes all refer to the same long text."""
    long, short = "x" * 4000, [f"y{one:07}" for one in range(number)]
    schema = pa.schema([("count", pa.int64())], metadata={"long": long} | dict.fromkeys(short, "z" * 8))
    content = bytearray(written(schema, [pa.record_batch([_ONE], schema=schema)]))
    target = content.index(struct.pack("<I", 4000) + b"xxxx")
    for _ in range(number):
        at = content.index(struct.pack("<I", 8) + b"zzzzzzzz")
        content[at : at + 4] = b"done"
        for place in range(0, at, 4):
            if place + struct.unpack_from("<I", content, place)[0] == at and place < target:
                content[place : place + 4] = struct.pack("<I", target - place)
    return bytes(content)


def test_metadata_that_say_one_text_many_times_are_refused_before_arrow_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = _repeated_text(50)
    known = pa.ipc.open_stream(content).schema.metadata
    assert sum(map(len, known.values())) > 20 * 4000  # the size that a reader would build
    monkeypatch.setattr(pa.ipc, "MessageReader", None)
    with pytest.raises(InvalidInput):
        read_counts(content, _MOST, _free)


def test_too_many_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "MOST_FIELDS", 3)
    nested = pa.array([{"a": 1, "b": 2}])
    assert read_counts(stream({"count": _ONE, "x": _ONE, "y": _ONE}), _MOST, _free).rows == 1
    with pytest.raises(TooLarge, match="3 columns"):
        read_counts(stream({"count": _ONE, "x": nested}), _MOST, _free)


@pytest.mark.parametrize(("batches", "rows", "fits"), [(100, 1, True), (101, 1, False), (101, 10, True)])
def test_a_stream_has_few_batches_for_its_rows(
    monkeypatch: pytest.MonkeyPatch, batches: int, rows: int, fits: bool
) -> None:
    """The stream is refused before Arrow reads a batch; batches without rows count too."""
    schema = pa.schema([("count", pa.int64())])
    large = [pa.record_batch([pa.array(range(100 * rows), pa.int64())], schema=schema)]
    small = [pa.record_batch([pa.array([], pa.int64())], schema=schema)] * (batches - 1)
    content = written(schema, small + large)
    if fits:
        assert read_counts(content, _MOST, _free).rows == 100 * rows
        return
    monkeypatch.setattr(pa.ipc, "MessageReader", None)
    with pytest.raises(InvalidInput) as refused:
        read_counts(content, _MOST, _free)
    assert [fault.detail for fault in refused.value.faults] == [
        "expected at most 100 record batches and one more for every 1000 rows: 100, got 101"
    ]
