"""Encodes blocks on Spark: `mapInArrow` maps them over Python workers, each of which loads the model once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from polyencoder.distributed.blocks import Block, Done, Work
from polyencoder.packages import require

_BLOCK, _DONE = "file string, first long, rows long, part string", "rows long, error string"


class SparkEngine:
    """An engine for `encode_blocks`: on the master that Spark is configured with, else on this machine.

    A session that it starts ends with the work.

    Args:
        workers: tasks at once, on this machine; a cluster has its own number.
    """

    def __init__(self, *, workers: int) -> None:
        self._workers = workers

    def __call__(self, blocks: Sequence[Block], work: Work) -> Iterator[Done]:
        sql, spark = require("pyspark.sql", extra="spark"), require("pyspark", extra="spark")
        builder = sql.SparkSession.builder.appName("polyencoder encode-candidates")
        if not spark.SparkConf().contains("spark.master"):
            builder = builder.master(f"local[{self._workers}]")
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark takes any python3
        known = sql.SparkSession.getActiveSession()  # of this thread
        starts = known is None and spark.SparkContext._active_spark_context is None
        session = known or builder.getOrCreate()
        try:
            rows = session.createDataFrame([tuple(block) for block in blocks], _BLOCK)
            done = rows.repartitionByRange(len(blocks), "part").mapInArrow(_mapper(work), _DONE)
            for row in done.collect():  # an iterator would compute one partition after the other
                yield Done(row["rows"], row["error"])
        finally:
            if starts:
                session.stop()


def _mapper(work: Work) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def encoded(batches: Iterable[Any]) -> Iterator[Any]:
        arrow = require("pyarrow", extra="data")
        for batch in batches:
            done = [work(Block(**row))._asdict() for row in batch.to_pylist()]
            yield arrow.RecordBatch.from_pylist(
                done, schema=arrow.schema([("rows", arrow.int64()), ("error", arrow.string())])
            )

    return encoded
