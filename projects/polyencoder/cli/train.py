"""`polyencoder train`: a ranker from one's own pairs. Its flags are the fields of `RunSettings`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from polyencoder.cli.runs import logged, one_of_several, with_flags
from polyencoder.config import Architecture
from polyencoder.errors import InputError, first_line
from polyencoder.evaluation.names import main_measures
from polyencoder.modeling.families import family
from polyencoder.storage.files import check_writable_folder
from polyencoder.training.run import RunReport, train_ranker
from polyencoder.training.settings import RunSettings

__all__ = ["train"]

# panel of the help -> field -> what it says
HELP: dict[str, dict[str, str]] = {
    "Data": {
        "train": "FILE or GLOB, comma-separated, or hf:NAME:SPLIT. JSON lines, CSV, TSV or Parquet.",
        "valid": "Evaluation data, in the same form (default: a tenth of the training data is held out).",
        "out": "The folder to write the model and its card to. A run that was killed resumes from it.",
        "context": "The column with the context: a text or a list of turns.",
        "response": "The column with the right response.",
        "column_candidates": "The column with candidates, if any: a list, or one text joined by |.",
        "streaming": "Read the training data as it is needed instead of loading it into memory; needs --valid.",
        "shuffle_buffer": "How many pairs of a stream are buffered for shuffling.",
        "skip_bad_examples": "Skip and count records that cannot be used, instead of stopping at them.",
        "num_negatives": "How many candidates to sample from the training responses for an example that has none.",
    },
    "Model": {
        "backbone": "A pre-trained encoder, or a ranker whose encoder a new one starts from: folder or hub id.",
        "init": "A trained ranker to go on training instead, as it is: folder, model file or hub id.",
        "architecture": "bi, poly, cross or convert (default: poly, or as --init).",
        "n_codes": "Number of context vectors of a poly-encoder (default: 64).",
        "context_vectors": "What they are: codes (default), n_first, n_last or first_n_last outputs.",
        "reduction": "How outputs are pooled into one vector (default: a sentence encoder's own, else first).",
        "reduction_outputs": "With --reduction mean_first: how many outputs are averaged (default: 64).",
        "normalize": "Normalize vectors to length 1 and compare them by cosine (default: only for sentence encoders).",
        "output_scaling": "Factor of both vectors, or auto (default: 4.47 for sentence encoders, else 1).",
        "share_encoders": "Use one tower for contexts and candidates.",
        "text_truncate": "Maximum tokens of a context; its latest turns are kept (default: 360, or as --init).",
        "label_truncate": "Maximum tokens of a candidate (default: 72, or as --init).",
        "history_size": "Maximum utterances of a context, -1 for all (default: 20, or as --init).",
        "turn_separator": "sep, newline or none between two turns (default: newline if the encoder has it, else sep).",
        "dropout": "Dropout of a convert model's embeddings and attention (default: 0, with --init 0.2).",
        "fine_tuned": "Which layers learn: all, all_encoder_layers, top4_layers or top_layer.",
    },
    "ConveRT": {
        "vocabulary": "The vocabulary of a new model: the folder or file that `polyencoder vocab` wrote.",
        "extra_contexts": "How many turns before the last one are read (default: 0, single-context; the paper: 10).",
        "number_turns": "Put its number before each of these turns, as the paper's model for DSTC7 does.",
        "hidden_size": "Dimensions of embeddings and blocks (default: 512).",
        "intermediate_size": "Dimensions of the blocks' feed-forward layers (default: 2048).",
        "attention_limits": "How many tokens away each block attends, comma-separated (default: 3,5,48,48,48,48).",
        "attention_heads": "Attention heads of the blocks (default: 1).",
        "relative_bias": "Learn an attention bias for each relative position (default: on).",
        "reduction_heads": "Attention heads of the reduction (default: 2).",
        "head_sizes": "Hidden layers of feed-forward 2, comma-separated (default: 1024,1024,1024).",
        "skips": "Skip connections in feed-forward 2 (default: on).",
        "scale_batches": "Batches over which the scale of the cosine rises (default: 10000).",
        "quantization_aware": "Train for embeddings in 8 bits and other weights in 16, as the model is then stored.",
        "quantization_update": "Batches between updates of the range of the 8-bit embeddings (default: 100).",
    },
    "Training": {
        "candidates": "batch: the responses of the batch; inline: each example's own, or sampled ones; "
        "batch-all-cands: the candidates of all examples of the batch.",
        "epochs": "Passes over the training data (default: 3, unless --max-updates is given).",
        "max_updates": "Maximum number of updates (default for convert with --init: 60000).",
        "max_seconds": "Maximum training time in seconds.",
        "batch_size": "Examples per batch and process (default: 32; cross 8; convert 512, with --init 256).",
        "learning_rate": "Peak learning rate, after the warm-up (default: 5e-05; convert 1, with --init 0.1).",
        "final_learning_rate": "Last learning rate of linear and cosine (default: 0; convert 1e-3, with --init 1e-4).",
        "optimizer": "adamw, adam, adamax, sgd or adadelta (default: adamw; convert adadelta).",
        "betas": "Betas of adamw, adam and adamax, comma-separated (default: 0.9,0.999).",
        "weight_decay": "Weight decay of matrices; biases and layer norms have none (default: 0.01; convert 1e-05).",
        "schedule": "linear, cosine, plateau, invsqrt or constant (default: linear; convert cosine).",
        "label_smoothing": "Probability mass shared by the wrong candidates (default: 0; convert 0.2).",
        "warmup_updates": "Updates of linear warm-up (default: 100, or a tenth of a shorter run; convert 0).",
        "precision": "float32, bfloat16 or, on a GPU, float16 (default: float32; quantized convert on a GPU: float16).",
        "bf16": "Short for --precision bfloat16.",
        "compile": "Compile the encoders with torch.compile; the first steps take longer.",
        "accumulate": "Batches per update (gradient accumulation).",
        "clip": "Maximum gradient norm, 0 for no limit (default: 1; convert 0).",
        "embedding_clip": "Maximum gradient norm of the embeddings alone, 0 for no limit (default: 0; convert 1).",
        "grad_cache": "Gradient caching: use the memory of this many contexts for a batch of any size; 0 turns it off.",
        "pair_tokens": "The same for a cross-encoder, as a number of tokens; 0 turns it off.",
        "gather_negatives": "With several processes: rank each example among the candidates of all of them.",
        "max_nonfinite": "End the run with an error after this many non-finite updates in a row.",
        "seed": "Random seed; equal seeds give equal runs.",
    },
    "Evaluation and checkpoints": {
        "evaluations": "Evaluations per epoch.",
        "patience": "End the run after this many evaluations in a row without improvement.",
        "save_every_seconds": "Also write a checkpoint this often between evaluations.",
        "device": "For example cpu or cuda:1 (default: CUDA if available).",
    },
    "Distillation and hard negatives": {
        "teacher": "Also learn this ranker's scores, usually a cross-encoder's: folder, model file or hub id.",
        "distillation_weight": "Weight of the teacher's loss, 0 to 1.",
        "distillation_loss": "kl or margin-mse.",
        "distillation_temperature": "Temperature of kl.",
        "distillation_candidates": "How many candidates of each example the teacher scores; 0 for all.",
        "hard_negatives": "How many mined wrong responses per example to add to the batch.",
        "hard_negatives_every": "Updates between encoding anew the responses that negatives are mined among.",
        "hard_negative_ranks": "Ranks among the wrong responses, best first, to draw negatives from, such as 10-100.",
        "hard_negative_margin": "Leave out negatives that score above the response's score minus this.",
    },
}


def train(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="A YAML file of these settings; flags take precedence."),
    ] = None,
    **given: Any,
) -> None:
    """Train a ranker on your own pairs, without ParlAI; torchrun starts several processes."""
    values = {} if config is None else RunSettings.checked(_read(config), origin=str(config))
    flags = {name: value for name, value in given.items() if value is not None}
    settings = RunSettings(**(values | RunSettings.checked(flags, origin=None)))
    check_writable_folder(settings.out, argument="out")
    with one_of_several(settings) as (settings, first), logged(show=first):
        report = train_ranker(settings)
        if first:
            typer.echo(_summary(report, of=settings.architecture))
            if report.warning:
                typer.echo(f"warning: {report.warning}", err=True)


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


def _summary(report: RunReport, *, of: Architecture) -> str:
    rows = {"TF-IDF": report.tfidf, "before training": report.before, "trained": report.trained}
    rows = {who: metrics for who, metrics in rows.items() if metrics}
    measures = main_measures(report.trained)
    first = next(iter(measures))
    lines = [f"{who:16} {first} {_first(metrics, first):.3f}" for who, metrics in rows.items()]
    if report.as_bi_encoder:
        lines[-2] += ", of a bi-encoder of the backbone: the new model's other layers are random"
    gain = _first(report.trained, first) - _first(report.before, first)
    ended = f"; ended early: {report.stopped}" if report.stopped else ""
    kept = f"the model after {report.kept} of {report.updates} updates" if report.kept else "the model before training"
    return "\n".join(
        [
            *lines,
            f"training gained {gain:+.3f} in {report.updates} updates, {report.seconds:.0f} s{ended}; kept: {kept}",
            f"{report.out}: written. Next: {_next(shlex.quote(str(report.out)), of)}",
        ]
    )


def _next(model: str, architecture: Architecture) -> str:
    """A command for the trained model; a cross-encoder, which has no index, ranks the candidates of examples."""
    if not family(architecture).model.has_vectors:
        return f"polyencoder evaluate --model {model} --data FILE, or --rerank {model} in polyencoder search and serve"
    return f"polyencoder index --model {model} --candidates FILE --out INDEX"


def _first(metrics: Mapping[str, float], name: str) -> float:
    return metrics.get(name, metrics["hits@1"])


with_flags(train, RunSettings, HELP)
