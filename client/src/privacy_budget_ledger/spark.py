"""Draws from a Spark job: every partition of the job is a partition of the draw."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql.types import LongType, StructField, StructType

from privacy_budget_ledger.clients import Client
from privacy_budget_ledger.exchange import key_of
from privacy_budget_ledger.frames import COUNT, NOISY
from privacy_budget_ledger.operations import part_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def noisy_counts(
    frame: "DataFrame",
    address: str,
    key: str,
    *,
    account: str,
    release: str,
    mechanism: str,
    count: str = COUNT,
    idempotency_key: str | None = None,
) -> "DataFrame":
    """Return a Spark table with ``noisy`` in the place of its counts, drawn by the job's own tasks.

    Task n draws the partition ``str(n)``, which the plan declares. A task that Spark runs again asks under the same
    idempotency key and gets the same noisy counts. For that its rows must be the same and in the same order: divide the
    table into a fixed number of partitions by a column, and sort each by a unique one. This package and pyarrow must be
    installed on the workers, which receive the key.

    Args:
        frame: with a column of whole numbers.
        address: the service's.
        key: of a pipeline.
        account: the account's name.
        release: the release's id.
        mechanism: its name or path in the plan.
        count: the column of true counts; only this column is sent.
        idempotency_key: by default made of the release and the mechanism, so that the whole job can run again.
    """
    base = f"{release}\n{mechanism}" if idempotency_key is None else key_of(idempotency_key)

    def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [batch for batch in batches if batch.num_rows]
        if not rows:
            return
        task: Any = TaskContext.get()
        partition = str(task.partitionId())
        with Client(address, key) as client:
            drawn = client.draw_release(
                account,
                release,
                pa.Table.from_batches(rows),
                mechanism=mechanism,
                count=count,
                partition=partition,
                idempotency_key=part_key(base, partition),
            )
        yield from drawn.frame.to_batches()

    noisy = StructField(NOISY, LongType(), nullable=False)
    fields = [noisy if field.name == count else field for field in frame.schema.fields]
    return frame.mapInArrow(draw, StructType(fields))
