"""What several workers count is one sum, without those who have died."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from polyencoder.errors import ConfigError, PolyencoderError
from polyencoder.serving.metrics import SHARED, Metrics
from tests.processes import full_disk

_WORKERS = """
import os
from polyencoder.serving.metrics import Metrics

metrics = Metrics()
metrics.under_way.inc()
if (child := os.fork()) == 0:
    metrics = Metrics()
    metrics.under_way.inc()
    metrics.requests.labels("/v1/rerank", "200").inc()
    print(metrics.format_metrics().decode(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("--", metrics.format_metrics().decode(), flush=True)
"""


@pytest.mark.usefixtures("forked_commands")
def test_a_worker_that_died_has_nothing_under_way_and_its_answers_still_count(tmp_path):
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}  # as the library reads it when imported
    done = subprocess.run([sys.executable, "-c", _WORKERS], env=environment, capture_output=True, text=True, check=True)
    both, _, alone = done.stdout.partition("--")
    assert "polyencoder_requests_under_way 2.0" in both
    assert "polyencoder_requests_under_way 1.0" in alone
    assert 'polyencoder_requests_total{route="/v1/rerank",status="200"} 1.0' in alone
    files = [file.stat() for file in tmp_path.iterdir()]
    assert {file.st_size for file in files} == {1 << 18}
    assert all(file.st_blocks * 512 >= file.st_size for file in files)  # else a full disk kills who counts


def test_a_disk_without_room_for_counts(tmp_path, monkeypatch):
    monkeypatch.setenv(SHARED, str(tmp_path))
    with full_disk(), pytest.raises(PolyencoderError, match="File too large"):
        Metrics()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_for_counts_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv(SHARED, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="PROMETHEUS_MULTIPROC_DIR is .*none, which is no folder: make it"):
        Metrics()


def test_a_worker_of_another_user_is_alive(tmp_path, monkeypatch):
    def kill(pid, signal):
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    gauge = tmp_path / "gauge_livesum_12345.db"
    gauge.write_bytes(bytes(1 << 10))  # of no values
    Metrics().format_metrics()
    assert gauge.exists()
