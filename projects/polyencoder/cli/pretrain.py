"""`polyencoder pretrain`: an encoder from one's own texts. Its flags are the fields of `PretrainingSettings`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from polyencoder.cli.runs import logged, one_of_several, with_flags
from polyencoder.files import check_writable_folder
from polyencoder.pretraining.run import PretrainingReport, pretrain
from polyencoder.pretraining.settings import WARMUP, WARMUP_SHARE, PretrainingSettings
from polyencoder.training.values import checked_values

__all__ = ["pretrain_encoder"]

# panel of the help -> field -> what it says
HELP: dict[str, dict[str, str]] = {
    "Data": {
        "out": "The folder that the encoder and its card are written to; a run that was killed goes on there.",
        "valid": "FILE or GLOB, several with commas: text to evaluate on, in the place of a share of the corpus.",
        "held_out": "The share of the documents that is held out to evaluate on.",
        "held_out_examples": "The most examples that are evaluated.",
        "shuffle_buffer": "Examples that are held to mix them.",
        "skip_bad_examples": "Leave out records that cannot be used, and say how many, instead of stopping there.",
    },
    "Model": {
        "vocabulary": "What a new encoder starts from: the folder that `polyencoder vocab --type bpe` wrote.",
        "backbone": "Or an encoder that goes on, with its own tokenizer: folder or hub id.",
        "n_layers": "Layers of a new encoder; 12.",
        "embedding_size": "Its dimensions; 768.",
        "n_heads": "Its heads of attention; 12.",
        "ffn_size": "Dimensions of its feed-forward layers; 3072.",
        "n_positions": "The most tokens of a sequence; 512, or the backbone's, if these are fewer.",
        "text_truncate": "The most tokens of a context, whose latest turns are kept; all that a sequence has room for.",
        "history_size": "The most turns of a context.",
        "dropout": "Of embeddings and layers.",
        "attention_dropout": "Of attention weights.",
    },
    "Training": {
        "mask_probability": "The share of the words that is masked.",
        "next": "yes-no: whether a response follows, as in the paper; contrastive: which one of the batch's does.",
        "reduction": "How outputs become a vector, if contrastive; a sentence encoder's own, else first.",
        "tokens_per_batch": "Tokens of a batch of one process, padding included.",
        "max_steps": "The most updates.",
        "max_seconds": "The most seconds.",
        "learning_rate": "After the warm-up.",
        "optimizer": "adamw, adam, adamax, sgd or adadelta.",
        "beta1": "Of the Adams.",
        "beta2": "Of the Adams.",
        "weight_decay": "Of weight matrices.",
        "schedule": "invsqrt, linear, cosine or constant.",
        "warmup_steps": f"Over which the rate rises; {WARMUP_SHARE:.0%} of --max-steps, or {WARMUP:,}.",
        "precision": "float32, bfloat16 or, on a GPU, float16.",
        "bf16": "The same as --precision bfloat16.",
        "accumulate": "Batches whose gradients an update collects.",
        "clip": "The largest norm of gradients; 0 for no limit.",
        "max_nonfinite": "So many updates in a row that are not finite end the run with an error.",
        "seed": "Equal seeds give equal runs.",
    },
    "Evaluation and checkpoints": {
        "evaluate_every": "Updates between two evaluations, after which the encoder is written.",
        "save_every_seconds": "Write a checkpoint so often.",
        "device": "Such as cpu or cuda:1; by default CUDA where there is any.",
    },
}


def pretrain_encoder(
    corpus: Annotated[
        list[str],
        typer.Argument(
            help="FILE or GLOB: JSON lines with turns, context and response, sentences, or text; text files with an "
            "article a line, sentences between tabs, or a sentence a line; Ubuntu's CSV, DSTC7's JSON; also .gz, .bz2, "
            ".xz and .zst."
        ),
    ],
    **given: Any,
) -> None:
    """Pre-train an encoder with masked words and next utterances; under torchrun in several processes."""
    flags = {name: value for name, value in given.items() if value is not None}
    checked = checked_values(PretrainingSettings, flags, origin=None)
    settings = PretrainingSettings(corpus=tuple(corpus), **checked)
    check_writable_folder(settings.out, argument="out")
    with one_of_several(settings) as (settings, first), logged(show=first):
        report = pretrain(settings)
        if first:
            typer.echo(_summary(report))


def _summary(report: PretrainingReport) -> str:
    rows = {"before": report.before, "pre-trained": report.trained}
    lines = [
        f"{who:12} masked words: perplexity {found['perplexity']:.1f}, accuracy {found['masked_accuracy']:.3f}; "
        f"next utterances: accuracy {found['next_accuracy']:.3f}"
        for who, found in rows.items()
    ]
    return "\n".join(
        [
            *lines,
            f"{report.updates:,} updates, {report.tokens:,} tokens, {report.seconds:.0f} s",
            f"{report.out}: written. Next: polyencoder train --backbone {report.out} --train FILE --out FOLDER",
        ]
    )


with_flags(pretrain_encoder, PretrainingSettings, HELP)
