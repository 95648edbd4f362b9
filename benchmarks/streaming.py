"""Measures reading the selection tasks: peak memory, seconds to the first example, examples per second.

    python -m benchmarks.streaming --datapath ../shared/data --json

Each case is one epoch of `teacher.act()` in a separate process. Memory is that of the whole process, above its size
after the imports; the clock starts before the teacher is made, so loading counts. The page cache is warm. The cases
take turns, `--repeats` times, and each number is a median.

- the formats, `-t selection:... -dt train:stream`: the files of the data path; DSTC7's is grown to `--gigabytes` by
  repetition;
- beside ParlAI's own `dstc7` and `ubuntu`, `-dt train:ordered:stream`, on the same plain files (DSTC7's of a twentieth
  of that size): `selection:dstc7:plain` gives the same examples as ParlAI's. ParlAI's `ubuntu` also gives the rows
  that are labelled 0 as examples, ours leaves them out. `..._vs_parlai` compares the time for the same file.

Needs ParlAI: `pip install --no-deps parlai==1.7.2`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.agents import quiet_parlai
from benchmarks.common import argument_parser, machine, measured_alone, peak_extra_mb, print_report
from polyencoder.data.readers import json_array, open_bytes
from polyencoder.errors import InputError, PolyencoderError

# The files of each task below the data path: the first that exists is read.
FILES = {
    "convai2": ("ConvAI2/train_self_original.txt*", "ConvAI2/train_self_original_no_cands.txt*"),
    "dstc7": ("dstc7/ubuntu_train_subtask_1.json*",),
    "ubuntu": ("Ubuntu/train.csv*",),
    "wiki": (
        "wiki_article_search/wikipedia_train.txt*",
        "wiki_article_search/wikipedia_shuf_train5M.txt*",
        "wiki_article_search/wikipedia_train250k.txt*",
    ),
    "reddit": ("reddit*/*.json*",),
}
DSTC7, UBUNTU = "dstc7/ubuntu_train_subtask_1.json", "Ubuntu/train.csv"
PEERS = {  # ParlAI's task, the version that its downloader looks for, and ours with the same examples
    "dstc7": ("2.0", "selection:dstc7:plain"),
    "ubuntu": (None, "selection:ubuntu:plain"),
}
Case = dict[str, Any]
"""ParlAI's options."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--datapath", type=Path, help="ParlAI's data folder, with the tasks' folders in it")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the DSTC7 file (--quick: at most 0.1)")
    parser.add_argument("--repeats", type=int, default=3, help="(--quick: 1)")
    parser.add_argument("--case", type=json.loads, help="measure this one case here: ParlAI's options as JSON")
    flags = parser.parse_args(arguments)
    if flags.case is not None:
        print(json.dumps(measure(flags.case)))
        return
    if flags.datapath is None:
        parser.error("--datapath is missing: ParlAI's data folder, with ConvAI2/, dstc7/, ... in it")
    if flags.gigabytes <= 0 or flags.repeats < 1:
        parser.error("--gigabytes must be above 0, and --repeats at least 1")
    size = int(1e9 * (min(0.1, flags.gigabytes) if flags.quick else flags.gigabytes))
    repeats = 1 if flags.quick else flags.repeats

    found = {name: file for name in FILES if (file := _find(flags.datapath, name))}
    with tempfile.TemporaryDirectory() as folder:
        try:
            cases = [*format_cases(flags.datapath, found, Path(folder, "large"), size=size)]
            cases += peer_cases(found, Path(folder, "plain"), size=size // 20)
        except PolyencoderError as error:
            raise SystemExit(str(error)) from None
        rounds = [[measure_alone(case) for case in cases] for _ in range(repeats)]
    rows = [_row(case, runs) for case, runs in zip(cases, zip(*rounds, strict=True), strict=True)]
    large = next((row for row in rows if row["task"] == "selection:dstc7"), {})
    report = {
        "benchmark": "streaming",
        "machine": machine(),
        "settings": {"dstc7_bytes": size, "peers_dstc7_bytes": size // 20, "repeats": repeats},
        "rows": rows,
        "left_out": {name: f"{flags.datapath} has no {FILES[name][0]}" for name in FILES if name not in found},
        "summary": {
            "dstc7_peak_mb": large.get("peak_mb"),
            "dstc7_first_example_s": large.get("first_example_s"),
            **{f"{name}_vs_parlai": _vs_parlai(name, rows) for name in PEERS},
        },
    }
    print_report(report, as_json=flags.json)


def format_cases(datapath: Path, found: dict[str, Path], large: Path, *, size: int) -> Iterator[Case]:
    """The tasks of the files that were found, as streams; writes the DSTC7 file of `size` bytes below `large`."""
    for name in found:
        task = PEERS["ubuntu"][1] if name == "ubuntu" else f"selection:{name}"  # one example for each row of the file
        case = {"task": task, "datatype": "train:stream", "datapath": str(datapath)}
        if name == "dstc7":
            case["datapath"] = str(large)
            write_dialogues(found[name], large / DSTC7, size=size)
        elif name == "reddit":
            case["selection_file"] = str(datapath / FILES[name][0])
        yield case


def peer_cases(found: dict[str, Path], plain: Path, *, size: int) -> Iterator[Case]:
    """Our tasks and ParlAI's own, on plain files that are written below `plain`."""
    from parlai.core.build_data import mark_done

    for name, (version, ours) in PEERS.items():
        if name not in found:
            continue
        if name == "dstc7":
            file = plain / DSTC7
            write_dialogues(found[name], file, size=size)
        else:
            file = plain / UBUNTU
            file.parent.mkdir(parents=True)
            with open_bytes(found[name]) as source, open(file, "wb") as target:
                shutil.copyfileobj(source, target)
        mark_done(str(file.parent), version)
        for task in (ours, name):
            yield {"task": task, "datatype": "train:ordered:stream", "datapath": str(plain)}


def write_dialogues(source: Path, target: Path, *, size: int) -> None:
    """Write a JSON array of about `size` bytes by repeating the elements of another."""
    texts = itertools.cycle(json.dumps(record) for _, record in json_array(source))
    first = next(texts, None)
    if first is None:
        raise InputError(f"{source}: has no dialogue")
    target.parent.mkdir(parents=True)
    with open(target, "w", encoding="utf-8") as file:
        written = file.write("[" + first)
        while written < size:
            written += file.write(",\n" + next(texts))
        file.write("]\n")


def measure_alone(case: Case) -> dict[str, float]:
    """Run `measure` in a separate process."""
    return measured_alone("benchmarks.streaming", "--case", json.dumps(case), what=f"-t {case['task']}")


def measure(case: Case) -> dict[str, float]:
    """One epoch of a teacher: how many examples, how long, and the peak memory in MB (2**20 bytes)."""
    quiet_parlai()
    from parlai.core.params import ParlaiParser
    from parlai.core.teachers import create_task_agent_from_taskname

    result: dict[str, float] = {}

    def read() -> None:
        start = time.perf_counter()
        messages = _one_epoch(create_task_agent_from_taskname(opt)[0])
        next(messages)
        result["first_example_s"] = time.perf_counter() - start
        result["examples"] = 1 + sum(1 for _ in messages)
        result["seconds"] = time.perf_counter() - start

    with contextlib.redirect_stdout(sys.stderr):  # where ParlAI prints what it is doing
        opt = ParlaiParser(True, False).parse_kwargs(**case)  # this imports the task
        result["peak_mb"] = peak_extra_mb(read, warm_up=False)
    return result


def _one_epoch(teacher: Any) -> Iterator[Any]:
    epochs = getattr(teacher, "epochs", None)  # ours count them, where training is endless
    while not teacher.epoch_done():
        message = teacher.act()
        if epochs is not None and epochs.epoch:
            return
        yield message


def _find(datapath: Path, name: str) -> Path | None:
    return next((path for pattern in FILES[name] for path in sorted(datapath.glob(pattern))), None)


def _row(case: Case, runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    speed = statistics.median(run["examples"] / run["seconds"] for run in runs)
    return {"task": case["task"], "datatype": case["datatype"], **medians, "examples_per_second": speed}


def _vs_parlai(name: str, rows: Sequence[dict[str, Any]]) -> float | None:
    """The speed of our task relative to ParlAI's on the same file."""
    seconds = {row["task"]: row["seconds"] for row in rows if row["datatype"] == "train:ordered:stream"}
    return seconds[name] / seconds[PEERS[name][1]] if name in seconds else None


if __name__ == "__main__":
    main()
