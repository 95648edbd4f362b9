"""The model card of an exported ranker: architecture, training, results, usage.

Facts alone, from the model and from what ParlAI keeps beside a model file (`X.opt`, `X.valid`, `X.test` and
`X.trainstats`). Unknown facts are left out, private paths are cut to their last part, and markup in texts is escaped.
"""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from polyencoder.calibration import CalibratedRanker
from polyencoder.config import PROMPTS, TextConfig
from polyencoder.encoding.protocol import TextRanker
from polyencoder.evaluation.worst import WorstError
from polyencoder.export.metadata import (
    SPLITS,
    build_results,
    cut_folder,
    format_front_matter,
    parse_hub_dataset,
    rename_card,
)
from polyencoder.export.training_run import TrainingRun, cut_folders
from polyencoder.packages import format_versions
from polyencoder.pictures import CURVE, RELIABILITY

TASK = "text-ranking"
"""The hub's name of the task of rankers."""
_LOADED = re.compile(r'^(ranker = Ranker\.from_pretrained\()"([^"]*)"', re.M)
_LINE_ENDS = re.compile(r"[\r\n\v\f\x85\u2028\u2029]+")
_MAX_CHARACTERS = 200  # of a text
_BAR = "\\|"  # in a cell


def write_model_card(
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

    name: of the folder or the repository. run: its training, if that is known. dtype: of the weights. graphs: the
    precisions of its ONNX graphs, "float32" or "float32 and int8"; empty for none. curve: whether the folder has the
    picture of the learning curve. worst: its worst errors on validation data.
    """
    run, name = run or TrainingRun(), _clean_name(name)
    config = ranker.model.config
    kind, described = ranker.model.title, ranker.model.describe()
    architecture, encoder = described.pop("architecture"), described.pop("encoder")
    if backbone := run.flags.get("backbone"):
        encoder = f"{cut_folder(backbone)}: {encoder}"
    facts: dict[str, Any] = {
        "architecture": architecture[0].upper() + architecture[1:],
        "encoder": encoder,
        **described,
        "parameters": ranker.model.describe_weights(dtype),
        "context": _describe_context(config.text),
        "candidate": f"the first {config.text.label_truncate} tokens"
        + (f", with a context {config.pair_truncate} at most" if config.pair_truncate else "")
        if not ranker.model.has_foreign_candidates
        else "",
        "prompts": ", ".join(
            f"{value!r} before a {name.removesuffix('_prompt')}"
            for name in PROMPTS
            if (value := getattr(config.text, name))
        ),
        "trained for": _describe_length(run),
        "ONNX graphs": graphs,
    }
    parts = [
        _write_metadata(run, name=name, tags=["response-selection", "dialogue", kind.lower()]),
        f"# {format_text(name)}",
        f"A {kind} that ranks replies to a dialogue"
        + (f", trained on the ParlAI task {format_code(run.task)}." if run.task else "."),
        format_table(("", ""), ((label, format_text(value)) for label, value in facts.items() if value)),
        "## Use",
        _write_usage(ranker, name=name),
        *_write_results(run),
        *([f"![Loss, R@1 and learning rate over the updates]({CURVE})"] if curve else []),
        *_write_worst(worst),
        *_write_training(run),
        "## Versions",
        f"{format_versions()}.",
    ]
    return "\n\n".join(parts) + "\n"


def update_card(card: str, ranker: CalibratedRanker, *, name: str, dtype: str = "float32", graphs: str = "") -> str:
    """Updates the card of a folder that is exported again: its name, the precision and the graphs.

    Everything else stays, including what people wrote, but the section about a calibration that the ranker does not
    have, such as that of another backend. Takes the arguments of `write_model_card`.
    """
    if ranker.calibration is None:
        card = _CALIBRATION.sub("", card)
    named, name = _LOADED.search(card), _clean_name(name)
    rows = [("parameters", ranker.model.describe_weights(dtype)), *([("ONNX graphs", graphs)] if graphs else [])]
    lines: list[str] = []
    for line in card.splitlines():
        if line.startswith("| parameters |"):
            lines += map(_format_row, rows)
        elif named and line == f"# {format_text(named[2])}":
            lines.append(f"# {format_text(name)}")
        elif not line.startswith("| ONNX graphs |"):
            lines.append(line)
    updated = "\n".join(lines) + "\n"
    return rename_card(_LOADED.sub(lambda match: f'{match[1]}"{name}"', updated), name=name)


def copy_pictures(card: str, source: Path, folder: Path) -> None:
    """Copies the pictures of a card that `update_card` made of that in `source`."""
    for name in (CURVE, RELIABILITY):
        if f"]({name})" in card and (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def set_calibration(card: str, facts: str, *, pictured: bool) -> str:
    """A card with a section about the calibration, with its picture if `pictured`, which replaces an earlier one."""
    picture = f"\n\n![Share of right answers against their probability]({RELIABILITY})" if pictured else ""
    return _set_section(card, f"## Calibration\n\n{format_text(facts)}{picture}\n\n")


def keep_calibration(card: str, *, earlier: str) -> str:
    """A card with the section about the calibration of an `earlier` card, if that has one."""
    section = _CALIBRATION.search(earlier)
    return card if section is None else _set_section(card, f"{section[0].rstrip()}\n\n")


_CALIBRATION = re.compile(r"^## Calibration\n.*?(?=^## |\Z)", re.M | re.S)


def _set_section(card: str, section: str) -> str:
    if (section_match := _CALIBRATION.search(card)) is None:
        section_match = re.search(r"(?=^## (Worst errors|Training|Versions)$)|\Z", card, re.M)
        assert section_match is not None
    return f"{card[: section_match.start()].rstrip()}\n\n{section}{card[section_match.end() :]}".rstrip() + "\n"


def _write_metadata(run: TrainingRun, *, name: str, tags: Iterable[str]) -> str:
    datasets = (parse_hub_dataset(run.flags.get(part)) for part in ("train", "valid"))
    evaluations = [(part, run.metrics[part], run.get_data_name(part)) for part in SPLITS if part in run.metrics]
    facts = {"task": TASK, "task_name": "Response selection"}
    return format_front_matter(
        name=name,
        library="polyencoder",
        task=TASK,
        tags=tags,
        base_model=run.base_model,
        datasets=dict.fromkeys(dataset for dataset in datasets if dataset),
        results=[
            result
            for part, measures, data in evaluations
            if data is not None
            for result in build_results(
                {name: value for name, value in measures.items() if name != "examples"},
                dataset=data,
                part=part,
                **facts,
            )
        ],
    )


def _describe_context(text: TextConfig) -> str:
    if text.truncation != "recent_first":
        return f"the latest {text.longest_context} tokens"
    last = f"the first {text.text_truncate} tokens of the last turn"
    return last if text.history_size == 1 else f"{last}, and of those before it, most recent first"


def _write_usage(ranker: TextRanker, *, name: str) -> str:
    lines = [
        "from polyencoder import Ranker",
        "",
        f'ranker = Ranker.from_pretrained("{name}")  # or the path of this folder',
    ]
    context = '["hi !", "hello , do you ski ?"]'
    if ranker.model.has_foreign_candidates:
        lines.append(f'ranker.search({context}, "INDEX", top_k=1)  # of vectors with this fingerprint')
    else:
        lines.append('candidates = ["yes , every winter .", "no .", "i have two dogs ."]')
        lines.append(f"ranker.rank({context}, candidates, top_k=1)")
    if ranker.model.has_vectors and not ranker.model.has_foreign_candidates:
        lines.append('index = ranker.index(candidates, "replies")  # of millions, encoded once')
        lines.append('ranker.search(["hello , do you ski ?"], index, top_k=2)')
    return "\n".join(["```python", *lines, "```"])


def _write_results(run: TrainingRun) -> list[str]:
    names = list(dict.fromkeys(name for report in run.metrics.values() for name in report))
    if not names:
        return []
    rows = (
        [format_text(part), *(_format_number(report.get(name)) for name in names)]
        for part, report in run.metrics.items()
    )
    return ["## Results", format_table(("", *names), rows)]


def _write_training(run: TrainingRun) -> list[str]:
    if not run.flags:
        return []
    rows = (
        (format_code(f"--{name.replace('_', '-')}"), format_code(cut_folders(name, value)))
        for name, value in run.flags.items()
    )
    return ["## Training", format_table((f"flag of `{run.command}`", "value"), rows)]


def _write_worst(errors: Sequence[WorstError]) -> Iterator[str]:
    """The section of the worst errors: each with the last turn of its context, and what was ranked above."""
    if not errors:
        return
    yield "## Worst errors"
    yield "Validation examples with the lowest ranks of the right response, and what was ranked above it."
    lines = []
    for error in errors:
        lines.append(f"- {_shorten(error.example.turns[-1])}: rank {error.rank} of {error.among}")
        ranked = [("right", *error.right), *(("above", *better) for better in error.above)]
        lines += [f"  - {label} ({score:.4g}): {_shorten(response)}" for label, response, score in ranked]
    yield "\n".join(lines)


def _shorten(value: str) -> str:
    return format_code(value if len(value) <= _MAX_CHARACTERS else f"{value[: _MAX_CHARACTERS - 4]} ...")


def _describe_length(run: TrainingRun) -> str:
    counts = {"updates": run.updates, "examples": run.examples, "pairs in the data": run.pairs}
    parts = [f"{value:,} {name}" for name, value in counts.items() if value is not None]
    return ", ".join(parts + ([f"seed {run.seed}"] if parts and run.seed is not None else []))


def format_table(heading: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Formats a Markdown table of cells made by `format_text` and `format_code`; bars in them are escaped."""
    first = list(heading)
    return "\n".join(map(_format_row, [first, ["---"] * len(first), *rows]))


def _format_row(cells: Iterable[Any]) -> str:
    return f"| {' | '.join(str(cell).replace('|', _BAR) for cell in cells)} |"


def format_text(value: Any) -> str:
    """A text in Markdown, in one line and without markup of HTML."""
    return html.escape(_LINE_ENDS.sub(" ", str(value)), quote=False)


def format_code(value: Any) -> str:
    """A code span of Markdown, in one line, however many backticks the text has."""
    code = _LINE_ENDS.sub(" ", str(value))
    fence = "`" * (1 + max(map(len, re.findall("`+", code)), default=0))
    space = " " if len(fence) > 1 else ""
    return f"{fence}{space}{code}{space}{fence}"


def _clean_name(name: str) -> str:
    return re.sub(r'["\\]', "'", _LINE_ENDS.sub(" ", name))


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else f"{value:,}"
