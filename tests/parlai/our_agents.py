"""A pytest plugin for ParlAI's own tests: the agents that they name are ours. Nothing of the project uses it.

The commands of ParlAI that a test starts take their options through `ParlaiParser.parse_kwargs`. Here, and in this
test run alone, that function is wrapped: `--agent NAME` (bi-, poly- or crossencoder) takes the place of ParlAI's
rankers, and of its mock agents in tests of how batches are made, which are for any agent. ParlAI's default
`--reduction-type mean`, which its tests do not name, is given to ours, whose default is `first`; and a seed, another
one for each try of a test, so that runs are alike.
"""

from __future__ import annotations

import functools
import itertools
import sys
from types import ModuleType
from typing import Any
from zlib import crc32

import pytest

# parlai.utils.testing imports it for tests of tasks, which are not among those that are run.
for name in ("pytest_regressions", "pytest_regressions.data_regression"):
    sys.modules.setdefault(name, ModuleType(name)).__dict__.setdefault("DataRegressionFixture", None)

from parlai.core.params import ParlaiParser  # noqa: E402

RANKERS = (
    "transformer/ranker",
    "transformer/polyencoder",
    "parlai.agents.transformer.polyencoder:IRFriendlyPolyencoderAgent",
)
MOCKS = ("parlai.agents.test_agents.test_agents:SilentTorchAgent", "test_agents/unigram")
SMALL = {"n_layers": 1, "n_heads": 1, "ffn_size": 4, "embedding_size": 4}
SMALL |= {"candidates": "batch", "eval_candidates": "batch"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--agent", required=True, help="the agent that takes the place of ParlAI's")


def substituted(options: dict[str, Any], agent: str, seed: int) -> dict[str, Any]:
    """The options of a command with our agent in the place of ParlAI's, or as they are."""
    model = options.get("model")
    if model not in RANKERS + MOCKS:
        return options
    options = {"reduction_type": "mean", **(SMALL if model in MOCKS else {}), **options, "model": agent}
    if options.get("datatype") not in ("valid", "test"):
        options["seed"] = seed  # a flag of training
    options.pop("skip_generation", None)  # a flag of generators
    if str(options.get("dict_file", "")).startswith("zoo:"):  # would be downloaded; ours learns one from the task
        del options["dict_file"]
        options.pop("dict_tokenizer", None)
    return options


@pytest.fixture(autouse=True)
def _ours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = ParlaiParser.parse_kwargs
    agent = request.config.getoption("--agent")
    seeds = itertools.count(crc32(request.node.nodeid.encode()) % 1000)

    @functools.wraps(parse)
    def wrapped(self: ParlaiParser, **options: Any) -> Any:
        return parse(self, **substituted(options, agent, next(seeds)))

    monkeypatch.setattr(ParlaiParser, "parse_kwargs", wrapped)
