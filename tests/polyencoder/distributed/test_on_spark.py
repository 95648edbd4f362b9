"""A real Spark on this machine: two tasks at once write what one process writes."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from polyencoder.distributed.blocks import Block, Done
from polyencoder.distributed.on_spark import SparkEngine


@pytest.fixture
def sql(monkeypatch):
    found = pytest.importorskip("pyspark.sql", reason="no Spark: pip install pyspark")
    if shutil.which("java") is None:
        pytest.skip("no Java, which Spark needs")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    return found


@pytest.mark.slow
def test_two_workers_write_what_one_process_writes(check_engine, sql):
    check_engine(SparkEngine(workers=2))
    assert sql.SparkSession.getActiveSession() is None, "the session that it started has ended"


@pytest.mark.slow
def test_a_session_of_another_thread_stays(sql):
    session = sql.SparkSession.builder.master("local[1]").getOrCreate()
    try:
        with ThreadPoolExecutor(1) as pool:
            block, done = Block("file", 0, 1, "part"), Done(1, "")
            assert pool.submit(lambda: [*SparkEngine(workers=1)([block], lambda _: done)]).result() == [done]
        assert session.range(3).count() == 3
    finally:
        session.stop()
