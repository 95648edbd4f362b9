"""A real Spark on this machine: two tasks at once write what one process writes."""

from __future__ import annotations

import shutil

import pytest

from polyencoder.distributed.on_spark import SparkEngine


@pytest.mark.slow
def test_two_workers_write_what_one_process_writes(check_engine, monkeypatch):
    sql = pytest.importorskip("pyspark.sql", reason="no Spark: pip install pyspark")
    if shutil.which("java") is None:
        pytest.skip("no Java, which Spark needs")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    check_engine(SparkEngine(workers=2))
    assert sql.SparkSession.getActiveSession() is None, "the session that it started has ended"
