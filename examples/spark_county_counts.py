"""County counts from a Spark job: every partition of the job is a partition of the draw, over Arrow.

    SERVICE=http://127.0.0.1:8000 KEY=pbl_... spark-submit examples/spark_county_counts.py

A task that Spark runs again asks under the same Idempotency-Key and is answered with the same noisy counts. For that
its rows must be the same and in the same order: a fixed number of partitions by a column, sorted by a unique one.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

COUNTIES = Path(__file__).resolve().parents[1] / "service" / "demo" / "us_county_population_2010.csv"
PARTITIONS = 8


def noisy_counts(counts: DataFrame, draws: str, key: str, mechanism: str) -> DataFrame:
    """The rows with ``noisy`` in the place of ``count``; ``draws`` is the address of a release's draws."""

    def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = list(batches)
        if not sum(batch.num_rows for batch in rows):
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows[0].schema) as writer:
            for batch in rows:
                writer.write_batch(batch)
        partition = str(TaskContext.get().partitionId())
        headers = {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/vnd.apache.arrow.stream",
            "Idempotency-Key": f"{draws} {mechanism} {partition}"[-255:],
        }
        query = {"mechanism": mechanism, "partition": partition}
        answer = httpx.post(draws, params=query, content=sink.getvalue().to_pybytes(), headers=headers, timeout=60)
        yield from pa.ipc.open_stream(answer.raise_for_status().content)

    fields = ", ".join(f"{'noisy' if name == 'count' else name} {kind}" for name, kind in counts.dtypes)
    return counts.mapInArrow(draw, fields)


def main() -> None:
    """Register the release, draw it, and print what came."""
    service, key = os.environ["SERVICE"], os.environ["KEY"]
    budget = {"definition": "pure", "epsilon": 1}
    account = {"name": "counties-spark", "unit": "person", "neighbouring": "add_remove", "budget": budget}
    parts = [str(number) for number in range(PARTITIONS)]  # each row is in one of them
    plan = {"type": "geometric", "name": "county", "epsilon": "0.5", "partitions": parts}
    with httpx.Client(base_url=service, headers={"Authorization": f"Bearer {key}"}) as caller:
        caller.post("/v1/accounts", json=account).raise_for_status()
        path = "/v1/accounts/counties-spark/releases"
        release = caller.post(path, json={"name": "county totals", "plan": plan}).raise_for_status().json()["id"]

    spark = SparkSession.builder.appName("county counts").getOrCreate()
    counties = spark.read.csv(str(COUNTIES), header=True).selectExpr("fips", "state", "bigint(population) AS count")
    divided = counties.repartition(PARTITIONS, "state").sortWithinPartitions("fips")
    noisy = noisy_counts(divided, f"{service}{path}/{release}/draws", key, "county")
    noisy.orderBy("fips").show(5)
    print(f"{noisy.count()} counties")  # the tasks run again, and are answered as before
    spark.stop()


if __name__ == "__main__":
    main()
