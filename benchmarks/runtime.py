"""Ranking without torch (`polyencoder.runtime`) beside torch: bytes installed, start, memory, latency.

    python -m benchmarks.runtime --json

Each side has a process of its own with one thread, started `--repeats` times in turns; medians. `start_s` is from the
start of the process to its first answer, of which `cpu_s` is the processor's time and `import_s` the import's;
`resident_mb` is the memory then. Contexts of 20 and of 86 tokens are encoded alone; `rank` is the short one with 20
candidates of 12 words that are new to the ranker. Milliseconds are the processor's, which say the same on a busy
machine. The model is all-MiniLM-L6-v2 as a bi-encoder with one tower, exported once; `--model FOLDER` is another
exported folder with int8 graphs.

`installed_mb` adds up the files, without bytecode, of what pip installs for polyencoder-runtime and for the library, as
installed here.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from benchmarks.common import argument_parser, machine, minilm_folder, print_report

ROOT = Path(__file__).parents[1]
RUNTIME = ("numpy", "tokenizers", "onnxruntime", "regex")

SIDES = {
    "runtime": "from polyencoder.runtime import Ranker; load = lambda: Ranker.from_pretrained(model, threads=1)",
    "runtime int8": "from polyencoder.runtime import Ranker; "
    "load = lambda: Ranker.from_pretrained(model, threads=1, precision='int8')",
    "torch": "from polyencoder import Ranker; load = lambda: Ranker.from_pretrained(model, device='cpu')",
    "torch, onnx-int8": "from polyencoder import Ranker; "
    "load = lambda: Ranker.from_pretrained(model, device='cpu', backend='onnx-int8')",
}
# A process is timed from its first line: what comes before is Python's own start
CHILD = """
import json, statistics, sys, time
begun = time.perf_counter()
model, repeats = sys.argv[1], int(sys.argv[2])
{side}
imported = time.perf_counter() - begun
ranker = load()
words = "the river is cold and we will go home soon with our old friend who has a small red boat".split()

def text(n, first=0):
    return " ".join(words[(first + 7 * place + place // 3) % len(words)] for place in range(n))

ranker.rank(text(18), [text(12, place) for place in range(20)])
found = {{"start_s": time.perf_counter() - begun, "cpu_s": time.process_time(), "import_s": imported}}
with open("/proc/self/status") as status:
    found["resident_mb"] = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))
new = iter(range(10 ** 6))

def rank():
    ranker.rank(text(18), [f"{{next(new)}} " + text(12, place) for place in range(20)])

def timed(work):
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(1000 * (time.process_time() - start))
    return statistics.median(times)

found["context_20_ms"] = timed(lambda: ranker.encode_contexts([text(18)]))
found["context_86_ms"] = timed(lambda: ranker.encode_contexts([text(84)]))
found["rank_20_ms"] = timed(rank)
print(json.dumps(found))
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", help="a folder with graphs in float32 and int8, and weights (default: MiniLM)")
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    flags = parser.parse_args(arguments)
    repeats = 1 if flags.quick else flags.repeats
    with tempfile.TemporaryDirectory() as folder:
        model = flags.model or exported(Path(folder) / "minilm")
        runs: dict[str, list[dict[str, float]]] = {side: [] for side in flags.sides}
        for _ in range(repeats):
            for side, found in runs.items():
                found.append(_measured(SIDES[side], model, repeats=3 if flags.quick else 15))
    rows: list[dict[str, Any]] = [
        {"side": side, **{key: statistics.median(one[key] for one in found) for key in found[0]}}
        for side, found in runs.items()
    ]
    installed = {"runtime": installed_mb(RUNTIME), "torch": installed_mb(["parlai-polyencoder", "onnxruntime"])}
    for row in rows:
        row["installed_mb"] = installed[row["side"].partition(" ")[0].rstrip(",")]
    summary = {f"{row['side']}: {key}": row[key] for row in rows for key in ("installed_mb", "start_s", "resident_mb")}
    report = {
        "benchmark": "runtime",
        "machine": machine(),
        "settings": {"model": flags.model or "all-MiniLM-L6-v2", "threads": 1, "repeats": repeats},
        "rows": rows,
        "summary": summary,
    }
    print_report(report, as_json=flags.json)


def installed_mb(names: Sequence[str]) -> float:
    """The size of distributions and all that they require, as installed here, in MB (10**6 bytes)."""
    waiting, size, known = [*names], 0, set[str]()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in known:
            continue
        known.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # for another platform, or not needed here
            continue
        for requirement in map(Requirement, found.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
        files = (Path(str(file.locate())) for file in found.files or () if not str(file).endswith(".pyc"))
        size += sum(file.stat().st_size for file in files if file.is_file())
    return size / 1e6


def exported(folder: Path) -> Path:
    from polyencoder import Ranker
    from polyencoder.export.folder import export_folder

    ranker = Ranker.from_backbone(minilm_folder(), "bi", share_encoders=True, device="cpu")
    export_folder(ranker, folder, onnx=True, int8=True)
    return folder


def _measured(side: str, model: str | Path, *, repeats: int) -> dict[str, float]:
    command = [sys.executable, "-c", CHILD.format(side=side), str(model), str(repeats)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
