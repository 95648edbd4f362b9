"""ParlAI's own trainer for several GPUs, with our agents and fp16."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu.fixtures import Unavailable, check

FLAGS = (
    "-t selection:sample --embedding-size 128 --ffn-size 256 --n-layers 2 --n-heads 4 --dropout 0 --text-truncate 64"
)
FLAGS += (
    " --batchsize 32 --learningrate 1e-3 --max-train-steps 100 --log-every-n-steps 20 --validation-every-n-steps 50"
)
FLAGS += " --reduction-type mean --fp16 true"


def run_multiprocessing_train(*, device: str, quick: bool) -> dict[str, Any]:
    """`parlai multiprocessing_train --fp16 true`, which joins its processes by NCCL: the loss falls."""
    if device != "cuda":
        raise Unavailable("multiprocessing_train joins its processes by NCCL, which needs a GPU")
    if importlib.util.find_spec("parlai") is None or importlib.util.find_spec("parlai.core") is None:
        raise Unavailable("ParlAI is not installed (pip install --no-deps parlai==1.7.2)")
    rows: list[dict[str, Any]] = []
    checks = []
    for model in ("biencoder", "polyencoder"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            command = [sys.executable, "-m", "parlai", "multiprocessing_train", "-m", model, *FLAGS.split()]
            done = subprocess.run([*command, "-mf", str(path)], capture_output=True, text=True, check=False)
            if done.returncode:
                why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
                return {"rows": rows, "checks": [check(f"{model}: {why[0]}", 1.0, limit=0.0)]}
            reports = json.loads(Path(f"{path}.trainstats").read_text(encoding="utf-8"))["train_reports"]
        losses = [report["mean_loss"] for report in reports if "mean_loss" in report]
        rows.append({"model": model, "first": losses[0], "last": losses[-1]})
        checks.append(check(f"{model}: last loss of the first", losses[-1] / losses[0], limit=0.9))
    return {"rows": rows, "checks": checks}
