"""The model card of an exported ranker: architecture, training, results, usage.

Facts alone, from the model and from what ParlAI keeps beside a model file (`X.opt`, `X.valid`, `X.test` and
`X.trainstats`). Unknown facts are left out, private paths are cut to their last part, and markup in texts is escaped.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyencoder.config import PROMPTS, TextConfig
from polyencoder.encoding.protocol import TextRanker
from polyencoder.evaluation.names import main_measures
from polyencoder.evaluation.worst import WorstError
from polyencoder.export.metadata import SPLITS, front_matter, hub_dataset, hub_id, renamed, results, without_folder
from polyencoder.modeling.families import FAMILIES
from polyencoder.packages import versions_line
from polyencoder.pictures import CURVE, RELIABILITY

# What of a training matters to a reader, when the options do not say which of them were given
_FLAGS = (
    *("task", "mutators", "backbone", "init_model", "candidates", "eval_candidates", "batchsize", "num_epochs"),
    *("max_train_steps", "optimizer", "learningrate", "lr_scheduler", "warmup_updates", "type_optimization", "dropout"),
    *("text_truncate", "label_truncate", "history_size", "bf16", "fp16"),
    *("label_smoothing", "final_learning_rate", "embedding_clip", "vocabulary"),
    *(name for family in FAMILIES.values() for name in family.settings),
)
_NOT_OF_CONVERT = ("history_size", "fp16", "backbone", "type_optimization")  # flags that `-m convert` does not have
_LENGTH = ("train_steps", "total_exs")  # in ParlAI's reports
TASK = "text-ranking"
"""The hub's name of what rankers do."""
_LOADED = re.compile(r'^(ranker = Ranker\.from_pretrained\()"([^"]*)"', re.M)
_LINE_ENDS = re.compile(r"[\r\n\v\f\x85\u2028\u2029]+")
_SHOWN = 200  # characters of a text
_BAR = "\\|"  # in a cell
_NOT_SHOWN = {"model_file", "dict_file", "datapath", "override"}


@dataclass(frozen=True)
class TrainingRun:
    """The known facts of a model's training."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    """The options that shaped it, `learningrate` -> 5e-05."""
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of each part of the data, `valid` or `test`, or of who else ranked it: R20@1 -> 0.83."""

    command: str = "parlai train_model"
    """The command whose flags the options are."""
    updates: int | None = None
    """Of the model that was kept, like `examples`."""
    examples: int | None = None
    pairs: int | None = None
    """Of the training data."""
    seed: int | None = None
    base_model: str | None = None
    """The hub id of the encoder or ranker that it started from, if that has one."""

    @property
    def task(self) -> str | None:
        return self.flags.get("task")

    def data(self, part: str) -> str | None:
        """The name of the data of a part: a task of ParlAI, a data set of the hub, or a file."""
        own = "valid" if part == "valid" else "train"
        files = self.flags.get(own) or self.flags.get("train")
        name = self.flags.get("evaltask") or self.task or files
        if name is None:
            return None
        return hub_dataset(name) or ", ".join(Path(one).name for one in str(name).split(","))


def measured(
    *, trained: Mapping[str, float], before: Mapping[str, float], stands_in: bool, tfidf: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """The main measures of a run's model and of its baselines, by the names that the card has; empty reports left out.

    `stands_in`: those before training are a bi-encoder's.
    """
    reports = {
        "valid": trained,
        "before training" + (", a bi-encoder of the backbone" if stands_in else ""): before,
        "TF-IDF": tfidf,
    }
    return {who: main_measures(report) for who, report in reports.items() if report}


def read_run(model_file: str | os.PathLike[str]) -> TrainingRun:
    """Reads ParlAI's files beside a model file; missing or damaged ones are skipped."""
    opt = _read(f"{os.fspath(model_file)}.opt")
    absent = _NOT_OF_CONVERT if opt.get("model") == "convert" else ()
    given = opt.get("override") or {name: opt.get(name) for name in _FLAGS if name not in absent}
    base_model = hub_id(opt.get("base_model"))  # the agent's note, as a relative path may look like a hub id
    flags = {name: _published(name, value) for name, value in sorted(given.items()) if name not in _NOT_SHOWN}
    flags = {name: value for name, value in flags.items() if value is not None and value != "" and value != -1}
    stats = _read(f"{os.fspath(model_file)}.trainstats")
    metrics = {}
    for part in ("valid", "test"):
        report = _last_report(f"{os.fspath(model_file)}.{part}") or stats.get(f"final_{part}_report")
        if part == "valid" and not report:
            report = _best(stats, metric=opt.get("validation_metric"))
        if isinstance(report, dict) and (chosen := main_measures(report)):
            metrics[part] = chosen | ({"examples": report["exs"]} if "exs" in report else {})
    best = _best(stats, metric=opt.get("validation_metric")) or stats
    updates, examples = (value if isinstance(value := best.get(name), int) else None for name in _LENGTH)
    length: dict[str, Any] = {"updates": updates, "examples": examples, "seed": opt.get("seed")}
    return TrainingRun(flags, metrics, base_model=base_model, **length)


def trained_dims(run: TrainingRun, card: str | None) -> set[int]:
    """The numbers of first dimensions that a training with `matryoshka` trained, too, as its options or card say."""
    row = re.search(r"^\| `--matryoshka` \| `(.*)` \|$", card or "", re.M)
    return {int(number) for number in re.findall(r"\d+", f"{run.flags.get('matryoshka')} {row and row[1]}")}


def model_card(
    ranker: TextRanker,
    *,
    name: str,
    run: TrainingRun | None = None,
    dtype: str = "float32",
    graphs: str = "",
    curve: bool = False,
    worst: Sequence[WorstError] = (),
) -> str:
    """Writes the README.md of a model folder.

    Args:
        name: of the folder or the repository, for the title and the example.
        run: its training, if that is known.
        dtype: of the weights in the folder.
        graphs: in which precisions it has ONNX graphs, "float32" or "float32 and int8"; empty for none.
        curve: whether the folder has the picture of the learning curve.
        worst: its worst errors on validation data.
    """
    run, name = run or TrainingRun(), _name(name)
    config = ranker.model.config
    kind, described = ranker.model.title, ranker.model.describe()
    architecture, encoder = described.pop("architecture"), described.pop("encoder")
    if backbone := run.flags.get("backbone"):
        encoder = f"{without_folder(backbone)}: {encoder}"
    facts: dict[str, Any] = {
        "architecture": architecture[0].upper() + architecture[1:],
        "encoder": encoder,
        **described,
        "parameters": ranker.model.describe_weights(dtype),
        "context": _context(config.text),
        "candidate": f"the first {config.text.label_truncate} tokens"
        + (f", with a context {config.pair_truncate} at most" if config.pair_truncate else ""),
        "prompts": ", ".join(
            f"{value!r} before a {name.removesuffix('_prompt')}"
            for name in PROMPTS
            if (value := getattr(config.text, name))
        ),
        "trained for": _length(run),
        "ONNX graphs": graphs,
    }
    parts = [
        _metadata(run, name=name, tags=["response-selection", "dialogue", kind.lower()]),
        f"# {text(name)}",
        f"A {kind} that ranks replies to a dialogue"
        + (f", trained on the ParlAI task {code(run.task)}." if run.task else "."),
        table(("", ""), ((label, text(value)) for label, value in facts.items() if value)),
        "## Use",
        _usage(ranker, name=name),
        *_results(run),
        *([f"![Loss, R@1 and learning rate over the updates]({CURVE})"] if curve else []),
        *_worst(worst),
        *_training(run),
        "## Versions",
        f"{versions_line()}.",
    ]
    return "\n\n".join(parts) + "\n"


def updated_card(card: str, ranker: TextRanker, *, name: str, dtype: str = "float32", graphs: str = "") -> str:
    """Updates the card of a folder that is exported again: its name, the precision and the graphs.

    Everything else stays, including what people wrote. The arguments are those of `model_card`.
    """
    named, name = _LOADED.search(card), _name(name)
    rows = [("parameters", ranker.model.describe_weights(dtype)), *([("ONNX graphs", graphs)] if graphs else [])]
    lines: list[str] = []
    for line in card.splitlines():
        if line.startswith("| parameters |"):
            lines += map(_row, rows)
        elif named and line == f"# {text(named[2])}":
            lines.append(f"# {text(name)}")
        elif not line.startswith("| ONNX graphs |"):
            lines.append(line)
    made = "\n".join(lines) + "\n"
    return renamed(_LOADED.sub(lambda found: f'{found[1]}"{name}"', made), name=name)


def copy_pictures(source: Path, folder: Path) -> None:
    """Copies the pictures of a card, for one that `updated_card` has made."""
    for name in (CURVE, RELIABILITY):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def with_calibration(card: str, facts: str, *, pictured: bool) -> str:
    """A card with a section about the model's calibration, which replaces an earlier one.

    `pictured`: whether the folder has the picture of its reliability.
    """
    picture = f"\n\n![Share of right answers against their probability]({RELIABILITY})" if pictured else ""
    section = f"## Calibration\n\n{text(facts)}{picture}\n\n"
    if (there := re.search(r"^## Calibration\n.*?(?=^## |\Z)", card, re.M | re.S)) is None:
        there = re.search(r"(?=^## (Worst errors|Training|Versions)$)|\Z", card, re.M)
        assert there is not None
    return f"{card[: there.start()].rstrip()}\n\n{section}{card[there.end() :]}".rstrip() + "\n"


def _metadata(run: TrainingRun, *, name: str, tags: Iterable[str]) -> str:
    datasets = (hub_dataset(run.flags.get(part)) for part in ("train", "valid"))
    evaluations = [(part, run.metrics[part], run.data(part)) for part in SPLITS if part in run.metrics]
    facts = {"task": TASK, "task_name": "Response selection"}
    return front_matter(
        name=name,
        library="polyencoder",
        task=TASK,
        tags=tags,
        base_model=run.base_model,
        datasets=dict.fromkeys(one for one in datasets if one),
        results=[
            one
            for part, measures, data in evaluations
            if data is not None
            for one in results(
                {name: value for name, value in measures.items() if name != "examples"},
                dataset=data,
                part=part,
                **facts,
            )
        ],
    )


def _context(text: TextConfig) -> str:
    if text.truncation != "recent_first":
        return f"the latest {text.longest_context} tokens"
    last = f"the first {text.text_truncate} tokens of the last turn"
    return last if text.history_size == 1 else f"{last}, and of those before it, most recent first"


def _usage(ranker: TextRanker, *, name: str) -> str:
    lines = [
        "from polyencoder import Ranker",
        "",
        f'ranker = Ranker.from_pretrained("{name}")  # or the path of this folder',
    ]
    if ranker.model.has_foreign_candidates:
        lines += [
            'ranker.search(["hi !", "hello , do you ski ?"], "INDEX", top_k=1)  # of vectors with this fingerprint'
        ]
        return "\n".join(["```python", *lines, "```"])
    lines += [
        'candidates = ["yes , every winter .", "no .", "i have two dogs ."]',
        'ranker.rank(["hi !", "hello , do you ski ?"], candidates, top_k=1)',
    ]
    if ranker.model.has_vectors:
        lines += ['index = ranker.index(candidates, "replies")  # of millions, encoded once']
        lines += ['ranker.search(["hello , do you ski ?"], index, top_k=2)']
    return "\n".join(["```python", *lines, "```"])


def _results(run: TrainingRun) -> list[str]:
    names = list(dict.fromkeys(name for report in run.metrics.values() for name in report))
    if not names:
        return []
    rows = ([text(part), *(_number(report.get(name)) for name in names)] for part, report in run.metrics.items())
    return ["## Results", table(("", *names), rows)]


def _training(run: TrainingRun) -> list[str]:
    if not run.flags:
        return []
    rows = ((code(f"--{name.replace('_', '-')}"), code(_published(name, value))) for name, value in run.flags.items())
    return ["## Training", table((f"flag of `{run.command}`", "value"), rows)]


def _worst(errors: Sequence[WorstError]) -> Iterator[str]:
    """The section of the worst errors: each with the last turn of its context, and what was ranked above."""
    if not errors:
        return
    yield "## Worst errors"
    yield "Validation examples with the lowest ranks of the right response, and what was ranked above it."
    lines = []
    for error in errors:
        lines.append(f"- {_shown(error.example.turns[-1])}: rank {error.rank} of {error.among}")
        ranked = [("right", *error.right), *(("above", *better) for better in error.above)]
        lines += [f"  - {who} ({score:.4g}): {_shown(response)}" for who, response, score in ranked]
    yield "\n".join(lines)


def _shown(value: str) -> str:
    return code(value if len(value) <= _SHOWN else f"{value[: _SHOWN - 4]} ...")


def _published(name: str, value: Any) -> Any:
    """A flag's value without folders; a prompt is text, also where it looks like a path."""
    return value if name in PROMPTS else without_folder(value)


def _length(run: TrainingRun) -> str:
    known = {"updates": run.updates, "examples": run.examples, "pairs in the data": run.pairs}
    parts = [f"{value:,} {name}" for name, value in known.items() if value is not None]
    return ", ".join(parts + ([f"seed {run.seed}"] if parts and run.seed is not None else []))


def table(heading: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Formats a Markdown table of cells made by `text` and `code`; bars in them are escaped."""
    first = list(heading)
    return "\n".join(map(_row, [first, ["---"] * len(first), *rows]))


def _row(cells: Iterable[Any]) -> str:
    return f"| {' | '.join(str(cell).replace('|', _BAR) for cell in cells)} |"


def text(value: Any) -> str:
    """A text in Markdown, in one line and without markup of HTML."""
    return html.escape(_LINE_ENDS.sub(" ", str(value)), quote=False)


def code(value: Any) -> str:
    """A code span of Markdown, in one line, whatever the text has of backticks."""
    shown = _LINE_ENDS.sub(" ", str(value))
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    space = " " if len(fence) > 1 else ""
    return f"{fence}{space}{shown}{space}{fence}"


def _name(name: str) -> str:
    """A folder's name in one line, for a string of Python."""
    return re.sub(r'["\\]', "'", _LINE_ENDS.sub(" ", name))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else f"{value:,}"


def _read(path: str) -> dict[str, Any]:
    try:
        values = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _last_report(path: str) -> dict[str, Any] | None:
    """The last evaluation in a `.valid` or `.test` file: a line of JSON, where ParlAI did not write a table."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    for line in reversed(lines):
        if line.startswith("{"):
            try:
                return dict(json.loads(line))
            except ValueError:
                return None
    return None


def _best(stats: Mapping[str, Any], *, metric: Any) -> dict[str, Any] | None:
    """The validation report of the saved model."""
    reports = stats.get("valid_reports") or []
    best = stats.get("best_valid")
    return next((one for one in reports if best == one.get(metric)), None)
