"""`polyencoder report RUN`: a training run as an HTML page."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from polyencoder.calibration import calibration_file
from polyencoder.checks import check_place
from polyencoder.cli.shared.loading import check_reads_candidates, load_named
from polyencoder.cli.shared.output import say
from polyencoder.data.example import Example
from polyencoder.data.negatives import NegativeSampler
from polyencoder.data.pairs import check_samples, data_files, examples_to_rank, read_all_pairs, responses_of
from polyencoder.errors import InputError
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import ColumnSettings, RunningSettings
from polyencoder.settings.fields import Count, Files, Needs
from polyencoder.storage.files import check_writable, reporting_write_errors, write_text

if TYPE_CHECKING:
    from polyencoder.report.record import RunRecord
    from polyencoder.report.validation import Validation

_OF_DATA = Needs("data")


@settings()
class ReportSettings(Settings):
    """What `polyencoder report` shows of a run, and where."""

    html: Path | None = None
    """The page to write (default: training/report.html in RUN, which is replaced)."""
    overwrite: bool = False
    """Replace --html."""
    data: Annotated[Files | None, Parameter(alias="-d")] = None
    """FILE or GLOB of validation data, comma-separated, or hf:NAME:SPLIT: also show the model's worst errors on it and
    how reliable a calibrated model's probabilities are."""
    columns: Annotated[ColumnSettings, _OF_DATA] = field(default_factory=ColumnSettings)
    num_negatives: Annotated[Count | None, _OF_DATA] = None
    """Candidates to sample for an example that has none (default: as many as in the run's evaluations)."""
    negatives: Annotated[Files | None, _OF_DATA] = None
    """FILE to sample them from (default: the responses of --data). With the training data they are the ones of the
    run's own evaluations."""
    seed: Annotated[int | None, _OF_DATA] = None
    """Seed of sampled candidates (default: the run's)."""
    running: RunningSettings = field(default_factory=RunningSettings)


_DEFAULTS = ReportSettings()


def report(run: Path, /, *, settings: ReportSettings = _DEFAULTS) -> None:
    """Show a training run on a page: measures against baselines, curve, settings, calibration, errors, speed.

    Args:
        run: The folder that polyencoder train wrote.
    """
    from polyencoder.report.page import report_page
    from polyencoder.report.record import read_run_record
    from polyencoder.report.validation import validate
    from polyencoder.training.folder import REPORT

    html = run / REPORT if settings.html is None else settings.html
    record = read_run_record(run)
    check_place("html", html)
    overwrite = settings.overwrite or settings.html is None
    read = [file for files in (settings.data, settings.negatives) if files for file in data_files(files)]
    check_writable(html, argument="html", overwrite=overwrite, read=read)
    examples = _examples(settings, settings.data, record) if settings.data else []
    ranker = None
    if examples or calibration_file(run).is_file():
        ranker = load_named(str(run), settings.running)
    validation: Validation | None = None
    if ranker is not None and settings.data:
        instead = "evaluate searches of that, with polyencoder evaluate --qrels"
        check_reads_candidates(ranker, instead=instead, argument="data")
        validation = validate(ranker, examples, data=settings.data)
    calibration = None if ranker is None else ranker.calibration
    with reporting_write_errors(html):
        write_text(html, report_page(record, calibration=calibration, validation=validation), overwrite=overwrite)
    say(f"{html}: written" + ("" if validation else ", without the worst errors: give --data FILE to see them"))


def _examples(settings: ReportSettings, data: str, record: RunRecord) -> list[Example]:
    """The validation examples, with candidates as the run's evaluations draw them."""
    from polyencoder.training.data import validation_examples

    columns = settings.columns.columns
    pairs = list(read_all_pairs(data, columns=columns))
    if not pairs:
        raise InputError(f"{data}: has no example to rank")
    check_samples(pairs, sorted(settings.given & {"num_negatives", "negatives", "seed"}))
    responses = partial(responses_of, pairs, settings.negatives, columns=columns)
    source, seed = settings.negatives or data, settings.seed
    seed = record.options["seed"] if seed is None else seed
    if settings.num_negatives is not None:
        sampler = NegativeSampler(responses(), count=settings.num_negatives, seed=seed, source=source)
        return examples_to_rank(pairs, sampler)
    of_the_run = record.options["num_negatives"]
    return validation_examples(pairs, responses, num_negatives=of_the_run, seed=seed, source=source)
