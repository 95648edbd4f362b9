"""`polyencoder map`: trains the baseline MAP, a linear map of responses' vectors, and saves a ranker with it."""

from __future__ import annotations

import json
import random
import shlex
from dataclasses import field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from polyencoder.cli.shared.loading import load_encoder
from polyencoder.cli.shared.output import say
from polyencoder.data.example import Example
from polyencoder.data.negatives import NegativeSampler
from polyencoder.data.pairs import examples_to_rank, read_all_pairs, responses_of
from polyencoder.data.readers import BadExamples
from polyencoder.errors import InputError
from polyencoder.index.meta import separable
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import PairColumns, RankerOrBackbone
from polyencoder.settings.fields import Count, Files, Needs
from polyencoder.settings.map import MapSettings
from polyencoder.storage.files import check_writable_folder

_HELD_OUT = 0.2  # of the training pairs, as much as in the published code


@settings()
class MapCommand(Settings):
    """The pairs that a map is trained and evaluated on."""

    train: Files
    """Pairs: FILE or GLOB, comma-separated, or hf:NAME:SPLIT."""
    encoder: RankerOrBackbone = field(default_factory=RankerOrBackbone)
    valid: Files | None = None
    """Other pairs, to evaluate with and without the map, and TF-IDF; never tuned on."""
    out: Annotated[Path | None, Parameter(alias="-o")] = None
    """The model folder to write the ranker with its map to."""
    overwrite: Annotated[bool, Needs("out")] = False
    """Replace a model in --out."""
    columns: PairColumns = field(default_factory=PairColumns)
    skip_bad_examples: bool = False
    """Skip and count records that cannot be used."""
    map: MapSettings = field(default_factory=MapSettings)
    num_negatives: Annotated[Count, Needs("valid")] = 19
    """Candidates to sample for each pair of --valid."""
    as_json: Annotated[bool, Parameter(name="--json")] = False
    """Print the report as one JSON object."""
    progress: bool = True
    """Show progress on standard error."""


def map_candidates(settings: MapCommand) -> None:
    """Train the baseline MAP: a linear map from responses' vectors to contexts', on a frozen encoder."""
    from polyencoder.evaluation import evaluate
    from polyencoder.evaluation.names import in_one_line, main_measures
    from polyencoder.evaluation.tfidf import evaluate_tfidf
    from polyencoder.export.folder import check_no_model, export_folder
    from polyencoder.ranker.ranker import Ranker
    from polyencoder.training.candidate_map import fit_map, mapped, pair_vectors

    train, valid, out, seed = settings.train, settings.valid, settings.out, settings.map.seed
    if out is not None:
        check_writable_folder(out, argument="out")
        check_no_model(out, overwrite=settings.overwrite)
    columns, bad = settings.columns.columns, BadExamples(skip=settings.skip_bad_examples)
    pairs = list(read_all_pairs(train, columns=columns, bad=bad))
    if not pairs:
        raise InputError(f"{train}: has no pair to train on")
    others = list(read_all_pairs(valid, columns=columns, bad=bad)) if valid else []
    if valid and not others:
        raise InputError(f"{valid}: has no pair to evaluate on")
    if summary := bad.summary():
        say(summary, err=True)
    trained, held_out = _split(pairs, seed=seed)
    ranker = load_encoder(settings.encoder)
    vectors = pair_vectors(ranker, [*trained, *held_out], progress=settings.progress)
    first, rest = vectors.split(len(trained))
    found = fit_map(
        first, rest, settings.map, on_progress=(lambda line: say(line, err=True)) if settings.progress else None
    )
    after = Ranker(mapped(separable(ranker), found.matrix), ranker.text, device=ranker.device)
    report = found._asdict()
    del report["matrix"]
    if others:
        responses = list(responses_of(pairs))
        sampler = NegativeSampler(responses, count=settings.num_negatives, seed=seed, source=train)
        examples = examples_to_rank(others, sampler)
        report["valid"] = {
            "TF-IDF": evaluate_tfidf(responses, examples),
            "unmapped": evaluate(ranker, examples).report(),
            "mapped": evaluate(after, examples).report(),
        }
    if out is not None:
        export_folder(after, out, overwrite=settings.overwrite)
    if settings.as_json:
        say(json.dumps(report))
        return
    say(
        f"held out: R@1 {found.before:.3f} unmapped, {found.recall:.3f} mapped (learning rate {found.learning_rate:g}, "
        f"L2 {found.regularizer:g}, {found.epochs} epochs)"
    )
    for who, metrics in report.get("valid", {}).items():
        say(f"{who:9}{in_one_line(main_measures(metrics))}")
    if others and (gain := report["valid"]["mapped"]["hits@1"] - report["valid"]["unmapped"]["hits@1"]) <= 0:
        say(f"warning: the map is no better than no map: R@1 {gain:+.3f}; give more pairs, or use none")
    if out is not None:
        say(f"{out}: written. Next: polyencoder evaluate --model {shlex.quote(str(out))} --data FILE")


def _split(pairs: list[Example], *, seed: int) -> tuple[list[Example], list[Example]]:
    """Splits the pairs into those to train on and the held-out last ones, which are of other dialogues.

    The held-out pairs come in random order, so that a pair is not ranked among its own dialogue's.
    """
    count = round(_HELD_OUT * len(pairs))
    first, last = pairs[: len(pairs) - count], pairs[len(pairs) - count :]
    return first, random.Random(seed).sample(last, count)
