"""County counts from a Spark job: every partition of the job is a partition of the draw, over Arrow.

    pip install './client[arrow]'
    SERVICE=http://127.0.0.1:8000 KEY=pbl_... spark-submit examples/spark_county_counts.py

A task that Spark runs again asks under the same Idempotency-Key and is answered with the same noisy counts. For that
its rows must be the same and in the same order: a fixed number of partitions by a column, sorted by a unique one.
"""

import os
from pathlib import Path

from pyspark.sql import SparkSession

from privacy_budget_ledger import Client, PureBudget, plans
from privacy_budget_ledger.spark import noisy_counts

COUNTIES = Path(__file__).resolve().parents[1] / "service" / "demo" / "us_county_population_2010.csv"
PARTITIONS = 8
ACCOUNT = "counties-spark"


def main() -> None:
    """Register the release, draw it, and print what came."""
    service, key = os.environ["SERVICE"], os.environ["KEY"]
    names = tuple(str(number) for number in range(PARTITIONS))  # each row is in one of them
    plan = plans.Geometric(name="county", epsilon="0.5", partitions=names)
    with Client(service, key) as ledger:
        ledger.open_account(ACCOUNT, unit="person", neighbouring="add_remove", budget=PureBudget(epsilon=1))
        release = ledger.register(ACCOUNT, name="county totals", plan=plan)

    spark = SparkSession.builder.appName("county counts").getOrCreate()
    counties = spark.read.csv(str(COUNTIES), header=True).selectExpr("fips", "state", "bigint(population) AS count")
    divided = counties.repartition(PARTITIONS, "state").sortWithinPartitions("fips")
    noisy = noisy_counts(divided, service, key, account=ACCOUNT, release=release.id, mechanism="county")
    noisy.orderBy("fips").show(5)
    print(f"{noisy.count()} counties")  # the tasks run again, and are answered as before
    spark.stop()


if __name__ == "__main__":
    main()
