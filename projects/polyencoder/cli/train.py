"""`polyencoder train`: a ranker from one's own pairs. Its flags are the fields of `RunSettings`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from polyencoder.cli.runs import logged, one_of_several, with_flags
from polyencoder.errors import InputError, first_line
from polyencoder.evaluation.names import main_measures
from polyencoder.files import check_writable_folder
from polyencoder.training.run import RunReport, train_ranker
from polyencoder.training.settings import RunSettings

__all__ = ["train"]

# panel of the help -> field -> what it says
HELP: dict[str, dict[str, str]] = {
    "Data": {
        "train": "FILE or GLOB, several with commas, or hf:NAME:SPLIT: JSON lines, CSV, TSV or Parquet.",
        "valid": "The same, to evaluate on; by default a tenth of the training data is held out.",
        "out": "The folder that the model and its card are written to; a run that was killed goes on there.",
        "context": "The column with the context, a text or a list of turns.",
        "response": "The column with the right response.",
        "column_candidates": "The column with candidates, if there are any: a list, or one text joined by |.",
        "streaming": "Read the training data as it is needed, instead of into memory; needs --valid.",
        "shuffle_buffer": "Pairs of a stream that are held to mix them.",
        "skip_bad_examples": "Leave out records that cannot be used, and say how many, instead of stopping there.",
        "num_negatives": "How many candidates are drawn from the training responses for an example that needs some.",
    },
    "Model": {
        "backbone": "A pre-trained encoder, folder or hub id.",
        "init": "A ranker to go on training, instead of a backbone: folder, model file or hub id.",
        "architecture": "bi, poly, cross or convert.",
        "n_codes": "Context vectors of a poly-encoder; 64.",
        "reduction": "How outputs become one vector; a sentence encoder's own, else first.",
        "normalize": "Vectors of length 1, compared by their cosine; on for sentence encoders.",
        "output_scaling": "Multiplies vectors, its square a cosine; 4.47 for sentence encoders, else 1; or auto.",
        "share_encoders": "One tower for contexts and candidates.",
        "text_truncate": "The most tokens of a context, whose latest turns are kept; 360, or the --init ranker's.",
        "label_truncate": "The most tokens of a candidate; 72, or the --init ranker's.",
        "history_size": "The most utterances of a context, -1 for all; 20, or the --init ranker's.",
        "dropout": "Of a convert model, after embeddings and attention; 0, and 0.2 of one that goes on with --init.",
        "fine_tuned": "Layer freezing: all, all_encoder_layers, top4_layers or top_layer learn.",
    },
    "ConveRT": {
        "vocabulary": "What a new one starts from: the folder or file that `polyencoder vocab` wrote.",
        "extra_contexts": "How many turns before the last one it reads; 0: a single-context model; the paper has 10.",
        "number_turns": "The number of each of these before it, as ConveRT's model for DSTC7 has them.",
        "hidden_size": "Of embeddings and blocks; 512.",
        "intermediate_size": "Of the blocks' feed-forward layers; 2048.",
        "attention_limits": "How far tokens see each other in each block, with commas; 3,5,48,48,48,48.",
        "attention_heads": "Heads of the blocks; 1.",
        "relative_bias": "A learnt bias for each distance; on.",
        "reduction_heads": "Heads of the reduction; 2.",
        "head_sizes": "Hidden layers of feed-forward 2, with commas; 1024,1024,1024.",
        "skips": "Skip connections in the last networks; on.",
        "scale_batches": "Batches over which the scale of cosines rises; 10000.",
        "quantization_aware": "Learn for embeddings in 8 bits and other weights in 16, as the model is then kept.",
        "quantization_update": "Batches after which the range of these 8 bits follows the embeddings; 100.",
    },
    "Training": {
        "candidates": "batch: the other responses of the batch; inline: each example's own, or drawn ones; "
        "batch-all-cands: those of the whole batch.",
        "epochs": "Passes over the training data; 3, unless --max-updates is given.",
        "max_updates": "The most updates; for convert with --init 60000.",
        "max_seconds": "The most seconds.",
        "batch_size": "Examples of a batch, for each process; 32, of cross 8, of convert 512 (--init: 256).",
        "learning_rate": "After the warm-up; 5e-05, for convert 1 (--init: 0.1).",
        "final_learning_rate": "Where linear and cosine end; 0, for convert 0.001 (--init: 0.0001).",
        "optimizer": "adamw, adam, adamax, sgd or adadelta; adamw, for convert adadelta.",
        "weight_decay": "Of weight matrices; biases and layer norms have none; 0.01, for convert 1e-05.",
        "schedule": "linear, cosine, plateau, invsqrt or constant; linear, for convert cosine.",
        "label_smoothing": "The probability that the wrong candidates share; 0, for convert 0.2.",
        "warmup_updates": "Over which the rate rises; 100, or a tenth of a shorter run; for convert 0.",
        "precision": "float32, bfloat16 or, on a GPU, float16; float32, of a quantized convert on a GPU float16.",
        "bf16": "The same as --precision bfloat16.",
        "compile": "Train encoders that torch.compile has made; the first steps wait for it.",
        "accumulate": "Batches whose gradients an update collects.",
        "clip": "The largest norm of gradients; 0 for no limit; 1, for convert 0.",
        "embedding_clip": "That of embeddings by themselves; 0 for no limit; for convert 1.",
        "grad_cache": "Gradient caching: the memory of so many contexts, whatever the batch size; 0: off.",
        "pair_tokens": "The same for a cross-encoder, in tokens; 0: off.",
        "gather_negatives": "With several processes: the candidates of all of them, for every example.",
        "max_nonfinite": "So many updates in a row that are not finite end the run with an error.",
        "seed": "Equal seeds give equal runs.",
    },
    "Evaluation and checkpoints": {
        "evaluations": "Evaluations in an epoch.",
        "patience": "So many evaluations in a row without a better one end the run.",
        "save_every_seconds": "Write a checkpoint so often between evaluations, too.",
        "device": "Such as cpu or cuda:1; by default CUDA where there is any.",
    },
    "Distillation and hard negatives": {
        "teacher": "Learn the scores of this ranker too, as a rule a cross-encoder: folder, model file or hub id.",
        "distillation_weight": "The part of the teacher's loss, 0 to 1.",
        "distillation_loss": "kl or margin-mse.",
        "distillation_temperature": "Of kl.",
        "distillation_candidates": "How many candidates of an example the teacher is asked about; 0 for all.",
        "hard_negatives": "So many mined wrong responses for each example join the batch.",
        "hard_negatives_every": "Updates between two indexes that they are mined in.",
        "hard_negative_ranks": "Which of the wrong responses, best first, are taken from, such as 10-100.",
        "hard_negative_margin": "Leave out those that score above the response's score less this.",
    },
}


def train(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A YAML file with any of these settings; flags go before it.")
    ] = None,
    **given: Any,
) -> None:
    """Train a ranker on your own pairs, without ParlAI; under torchrun in several processes."""
    values = {} if config is None else RunSettings.checked(_read(config), origin=str(config))
    flags = {name: value for name, value in given.items() if value is not None}
    settings = RunSettings(**(values | RunSettings.checked(flags, origin=None)))
    check_writable_folder(settings.out, argument="out")
    with one_of_several(settings) as (settings, first), logged(show=first):
        report = train_ranker(settings)
        if first:
            typer.echo(_summary(report))


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path}: cannot be read ({first_line(error)})") from None
    except yaml.YAMLError as error:
        raise InputError(f"--config {path}: not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(values, dict):
        raise InputError(f"--config {path}: must hold `name: value` lines")
    return {str(name).replace("-", "_"): value for name, value in values.items()}


def _summary(report: RunReport) -> str:
    rows = {"TF-IDF": report.tfidf, "before training": report.before, "trained": report.trained}
    rows = {who: metrics for who, metrics in rows.items() if metrics}
    measures = main_measures(report.trained)
    first = next(iter(measures))
    lines = [f"{who:16} {first} {_first(metrics, first):.3f}" for who, metrics in rows.items()]
    gain = _first(report.trained, first) - _first(report.before, first)
    ended = f"; ended early: {report.stopped}" if report.stopped else ""
    return "\n".join(
        [
            *lines,
            f"training gained {gain:+.3f} in {report.updates} updates, {report.seconds:.0f} s{ended}",
            f"{report.out}: written. Next: polyencoder index --model {report.out} --candidates FILE --out INDEX",
        ]
    )


def _first(metrics: Mapping[str, float], name: str) -> float:
    return metrics.get(name, metrics["hits@1"])


with_flags(train, RunSettings, HELP)
