"""`polyencoder calibrate`: fits probabilities of scores on held-out examples."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from polyencoder.calibration import Calibration, calibration_file
from polyencoder.calibration.risk import CONFIDENCE, bound_risk, compute_p_value
from polyencoder.cli.shared.loading import check_index, check_reads_candidates, describe_left_out, load, load_reranker
from polyencoder.cli.shared.output import say
from polyencoder.data.layouts import Columns
from polyencoder.data.pairs import read_examples
from polyencoder.data.readers import BadExamples, iter_records
from polyencoder.errors import ConfigError, InputError, UsageError
from polyencoder.hub.resolve import exists
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import RankerSettings
from polyencoder.settings.fields import Files, OneIndex, Shares
from polyencoder.settings.metadata import Needs, Without
from polyencoder.storage.files import check_writable, write_text
from polyencoder.validation import Count

if TYPE_CHECKING:
    from polyencoder.calibration.fitting import Fit

_OF_FIT = Without("feedback")


@settings()
class CalibrateSettings(Settings):
    """Settings of a calibration: the model and the examples."""

    model: RankerSettings
    data: Annotated[Files | None, Parameter(alias="-d"), _OF_FIT] = None
    """FILE of examples that the model was not trained on (JSON lines, CSV, TSV or Parquet): `context`, the right
    `response` and perhaps `candidates`; for an example without these they are drawn, as polyencoder evaluate does."""
    feedback: str | None = None
    """FILE of polyencoder serve --feedback: instead of a fit, test the promises of the calibration by how many replies
    were rejected."""
    columns: Annotated[Columns, _OF_FIT] = field(default_factory=Columns)
    index: Annotated[OneIndex | None, _OF_FIT] = None
    """Calibrate for searching this index instead of ranking each example's candidates."""
    rerank: Annotated[str | None, Needs("index")] = None
    """With --index: calibrate this cross-encoder, which reranks what --model finds."""
    rerank_k: Annotated[Count | None, Needs("index")] = None
    """How many results are reranked (default: 50 by a cross-encoder, 100 by a late-interaction encoder itself)."""
    keep_turns: Annotated[bool, Needs("index")] = False
    """Also return candidates that repeat a turn of their context (ignoring case and spacing)."""
    skip_bad_examples: Annotated[bool, _OF_FIT] = False
    """Skip and count records that cannot be used, instead of stopping at them."""
    num_negatives: Annotated[Count | None, Without("index"), _OF_FIT] = None
    """Candidates to sample for an example that has none (default: 19)."""
    negatives: Annotated[Files | None, Without("index"), _OF_FIT] = None
    """FILE to sample them from (default: the responses of --data)."""
    seed: Annotated[int, _OF_FIT] = 0
    """Seed of sampled candidates, and of the half of the examples that tests a risk."""
    unanswerable: Annotated[float, _OF_FIT] = 0.5
    """Expected share of contexts that no candidate answers."""
    risk: Annotated[Shares, _OF_FIT] = ()
    """Promise that at most this share of the answers is wrong, for --max-risk, such as 0.05; several with commas. Half
    of the examples test the promise."""
    confidence: Annotated[float, Needs("risk")] = CONFIDENCE
    """Probability that a promised risk holds."""


def calibrate(settings: CalibrateSettings) -> None:
    """Fit a temperature and the score of "none of these", so that results say how likely they are right.

    Writes calibration.json into the model folder, or beside the model file. Ranker, search and the agents find it there
    until the model is trained again. One for an index and one for ranking are kept side by side. It is for the scores
    of one backend: int8 graphs have others than the model.
    """
    from polyencoder.calibration.fitting import check_fit
    from polyencoder.export.metadata import cut_folder

    data, index = settings.data, settings.index
    if settings.feedback is not None:
        _compare_promises(settings.feedback, load(settings.model).calibration, model=settings.model.model)
        return
    if data is None:
        raise UsageError("calibrate requires --data, examples to fit, or --feedback, ratings that test the promises")
    calibrated = settings.rerank or settings.model.model
    if not exists(calibrated):
        raise ConfigError(f"{calibrated:.200}: no such folder or file; export a hub's model to a folder first")
    check_writable(calibration_file(calibrated), argument="the calibration", overwrite=True)
    bad = BadExamples(skip=settings.skip_bad_examples)
    examples, drawn = read_examples(
        data,
        columns=settings.columns,
        with_candidates=index is None,
        num_negatives=settings.num_negatives,
        negatives=settings.negatives,
        seed=settings.seed,
        bad=bad,
    )
    shares = {"unanswerable": settings.unanswerable, "confidence": settings.confidence}
    check_fit(len(examples), risks=settings.risk, **shares)  # before the model is loaded
    check_index(index)
    ranker = load(settings.model)
    reranker = load_reranker(settings.rerank, settings.model)
    if index is None:
        check_reads_candidates(ranker, instead="calibrate searches of that, with --index", argument="model")
    fitted = ranker.calibrate(
        examples,
        index,
        risk=settings.risk,
        **shares,
        seed=settings.seed,
        data=cut_folder(data),  # the file goes where the model goes
        rerank=reranker,
        rerank_k=settings.rerank_k,
        keep_turns=settings.keep_turns,
        progress=None,
    )
    new, whole = fitted.calibration, (reranker or ranker).calibration or fitted.calibration
    whole.save(calibrated)
    say(_format_report(fitted, settings, examples=len(examples)))
    if drawn:
        say(f"{drawn:,} of the examples had no candidates: other responses of {settings.negatives or data} were drawn")
    if skipped := bad.summarize():
        say(f"polyencoder: {skipped}", err=True)
    if note := describe_left_out(fitted.left_out):
        say(note)
    say(f"{calibration_file(calibrated)}: written, for {_describe_use(new)}")
    _show_on_card(Path(calibrated), fitted, new, backend=settings.model.backend)
    for calibration in filter(None, (whole, whole.index)):
        if calibration.fitted_on != new.fitted_on:
            say(f"the one for {_describe_use(calibration)} is kept beside it")


def _compare_promises(path: str, calibration: Calibration | None, *, model: str) -> None:
    """Compares each promised risk with the share of rejected replies, among those with at most this risk.

    Raises InputError without promises, or without such replies.
    """
    promises = [] if calibration is None else [*calibration.promises, *(calibration.index or calibration).promises]
    risks = dict.fromkeys(promise.risk for promise in promises)  # of rankings and of searches
    if not risks:
        raise InputError(f"{model}: its calibration promises no risk; calibrate it with `polyencoder calibrate --risk`")
    ratings = [
        (record.get("risk"), file != path)
        for file in (path, *filter(exists, [f"{path}.rejected.jsonl"]))
        for _, record in iter_records(file, format="jsonl")
    ]
    rejections = {
        risk: [rejected for promised, rejected in ratings if isinstance(promised, float) and promised <= risk]
        for risk in risks
    }
    if not any(rejections.values()):
        raise InputError(f"{path}: has no ratings of replies with a promise, which clients send with the reply's risk")
    for risk, rejected in rejections.items():
        if not (rated := len(rejected)):
            say(f"No rated reply has a risk of {risk:g}.")
            continue
        wrong = sum(rejected)
        share = float(bound_risk(wrong, rated, confidence=CONFIDENCE))
        say(
            f"{rated:,} rated replies, {wrong:,} of them rejected: {wrong / rated:.1%}, at most {share:.1%} of all "
            f"({CONFIDENCE:.0%} confidence)"
        )
        chance = compute_p_value(wrong, rated, risk=risk)
        if chance < 1 - CONFIDENCE:
            say(
                f"A risk of {risk:g} is not held: chance gives this many rejections with a probability of "
                f"{chance:.2g}. Calibrate again, with recent examples.",
                err=True,
            )
        else:
            say(f"Nothing speaks against a risk of {risk:g} (p = {chance:.2g}).")


def _show_on_card(folder: Path, fitted: Fit, calibration: Calibration, *, backend: str) -> None:
    """Writes the calibration into the card of a model folder, with a picture of its reliability."""
    from polyencoder.checkpoint import holds_encoder
    from polyencoder.export.card import set_calibration
    from polyencoder.export.folder import README
    from polyencoder.pictures import RELIABILITY, draw_reliability

    card = folder / README
    if not card.is_file() or holds_encoder(folder):  # whose card is another package's
        return
    try:
        draw_reliability(fitted.after, folder / RELIABILITY)
    except ConfigError as error:
        say(f"the card has no picture: {error}", err=True)
    scores = " by the backend onnx-int8 alone" if backend == "onnx-int8" else ""
    facts = (
        f"Probabilities for {_describe_use(calibration)}{scores}: calibration error {fitted.after.error:.4f}, "
        f"Brier score {fitted.after.brier:.4f}, out of fold. Temperature {calibration.temperature:.4g}, "
        f"none {calibration.none:.4g}."
    )
    facts = " ".join([facts, *map(str, calibration.promises)])
    pictured = (folder / RELIABILITY).is_file()
    write_text(card, set_calibration(card.read_text(encoding="utf-8"), facts, pictured=pictured))


def _describe_use(calibration: Calibration) -> str:
    """The use of a calibration, and the examples that it was fitted on."""
    source = calibration.fitted_on
    if source is None:
        return "ranking candidates"
    use = f"searching {source.index}" if source.index else "ranking candidates"
    return (
        f"{use} ({source.examples:,} examples of {source.data} among {source.candidates:,} candidates, {source.date})"
    )


def _format_report(fitted: Fit, settings: CalibrateSettings, *, examples: int) -> str:
    calibration = fitted.calibration
    rows = [
        f"{examples:,} examples; the first candidate is right in {fitted.accuracy:.1%}",
        f"each counts with its right candidate and, with a weight of {settings.unanswerable:g}, without it",
        f"temperature {calibration.temperature:.4g}, none {calibration.none:.4g}",
        "",
        "               before                 after",
        "share   probability  right    probability  right",
        *(
            f"{b.share:5.1%}       {b.probability:.3f}  {b.right:.3f}          {a.probability:.3f}  {a.right:.3f}"
            for b, a in zip(fitted.before.bins, fitted.after.bins, strict=False)
        ),
        f"error      {fitted.before.error:.4f}                {fitted.after.error:.4f}",
        f"Brier      {fitted.before.brier:.4f}                {fitted.after.brier:.4f}",
        "(before: the softmax of the scores; after: found out of fold)",
    ]
    if fitted.least_risk is not None:
        promises = {promise.risk: str(promise) for promise in calibration.promises}
        rows += [promises.get(risk) or f"No threshold promises a risk of {risk:g}." for risk in settings.risk]
        rows.append(f"The smallest risk that these examples could promise is {fitted.least_risk:.3g}.")
    return "\n".join(rows)
