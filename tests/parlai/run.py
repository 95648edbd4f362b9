"""`make parlai-tests PARLAI_TESTS=folder`: ParlAI's own tests of rankers, with our agents in the place of its own.

`folder` is `tests/` of a checkout of ParlAI; nothing is fetched, and none of its files is here. Prints which tests pass
and why others do not; fails where that has changed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

ALL = [
    "test_transformers.py::TestTransformerRanker",
    "test_dynamicbatching.py::TestDynamicBatching",
    "test_dynamicbatching.py::TestBatchSort",
    "test_other_scripts.py::TestProfileTrain",
]
# Each of ours has the accuracy to reach that its counterpart has there.
AGENTS = {
    "biencoder": ["test_tra.py::TestTransformerRanker", *ALL],
    "polyencoder": ["test_tra.py::TestPolyRanker", *ALL],
    "crossencoder": ["test_tra.py::TestTransformerRanker", *ALL],
}

# What is not run, or is for chance to decide: test -> why.
REPEATS = (
    "the answer repeats the question, which fixed candidates may not (--repeat-blocking-heuristic false passes); "
    "ParlAI's agents block at batch size 1 only"
)
LEFT_OUT = {
    "test_tra.py::TestTransformerRanker::test_train_fixed": REPEATS,
    "test_tra.py::TestPolyRanker::test_train_fixed": REPEATS,
    "test_transformers.py::TestTransformerRanker::test_backcomp": "downloads a model",
    "test_dynamicbatching.py::TestDynamicBatching::test_world_logging": "runs a generator, which it downloads",
    "test_dynamicbatching.py::TestDynamicBatching::test_world_logging_buffersize": "likewise",
    "test_other_scripts.py::TestProfileTrain::test_torch_cuda": "needs a GPU",
}

# What fails: test -> why; of the cross-encoder also what comes behind.
EXPECTED = {
    "test_eval_vocab": "words of a vocabulary are no candidates: an error at the start",
    "test_prelayernorm": "an encoder from scratch is a BERT (--variant xlm); others are read from ParlAI's models",
    "test_no_truncate": "wants an error where no length is given; ours have one by default",
    "test_alt_reduction": "the first output of a BERT of 8 dimensions, whose weights begin smaller than ParlAI's, "
    "learns nothing yet in the test's 50 updates",
}
SLOW = dict.fromkeys(
    ["test_train_batch", "test_train_batch_all", "test_repeater", "test_xlm"],
    "a cross-encoder of 8 dimensions learns nothing yet in the test's 50 updates",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="tests/ of a checkout of ParlAI")
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--processes", default="2")
    args = parser.parse_args()
    folder = args.folder.resolve()
    if not (folder / "test_tra.py").is_file():
        parser.error(f"{args.folder}: has no test_tra.py; give the folder tests/ of a checkout of ParlAI")
    changed = []
    for agent in args.agents:
        print(f"\n{agent}\n")
        expected = EXPECTED | (SLOW if agent == "crossencoder" else {})
        outcomes = run(folder, agent, processes=args.processes)
        passed = sum(outcomes.values())
        print(f"{passed} of {len(outcomes)} tests pass")
        for test, ok in outcomes.items():
            reason = expected.get(test.rpartition("::")[2])
            if not ok:
                print(f"- {test}: {reason or 'UNEXPECTED'}")
            if ok == (reason is not None):
                changed.append(f"{agent}: {test} {'passes' if ok else 'fails'}")
    print("\nleft out\n")
    for test, reason in LEFT_OUT.items():
        print(f"- {test}: {reason}")
    if changed:
        sys.exit("\nnot as expected:\n" + "\n".join(changed))


def run(folder: Path, agent: str, *, processes: str) -> dict[str, bool]:
    """Test -> whether it passed. The folder must be importable as `tests`, so pytest runs in the one above it."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder.parent), "-q", "--tb=line"]
        command += ["-p", "our_agents", "-p", "no:cacheprovider", "--agent", agent, "-n", processes]
        command.append(f"--junitxml={report}")
        command += [f"--deselect={folder.name}/{test}" for test in LEFT_OUT]
        command += [f"{folder.name}/{test}" for test in AGENTS[agent]]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
        output = subprocess.run(
            command, cwd=folder.parent, env=environment, capture_output=True, text=True, check=False
        ).stdout
        if not report.exists():
            sys.exit(output)
        outcomes = {}
        for case in ET.parse(report).iter("testcase"):  # its own report, not from elsewhere
            module, _, name = case.attrib["classname"].rpartition(".")
            test = f"{module.rpartition('.')[2]}.py::{name}::{case.attrib['name']}"
            outcomes[test] = case.find("failure") is None and case.find("error") is None
        return outcomes


if __name__ == "__main__":
    main()
