"""`polyencoder pretrain`: an encoder from one's own texts. Its flags are the fields of `PretrainingSettings`."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from polyencoder.cli.runs import logged, one_of_several, with_flags
from polyencoder.pretraining.run import PretrainingReport, pretrain
from polyencoder.pretraining.settings import WARMUP_SHARE, PretrainingSettings
from polyencoder.storage.files import check_writable_folder
from polyencoder.training.values import checked_values

__all__ = ["pretrain_encoder"]

# panel of the help -> field -> what it says
HELP: dict[str, dict[str, str]] = {
    "Data": {
        "out": "The folder to write the encoder and its card to. A run that was killed resumes from it.",
        "valid": "FILE or GLOB, comma-separated: text to evaluate on, instead of a share of the corpus.",
        "held_out": "Share of the documents that is held out for evaluation.",
        "held_out_examples": "Maximum number of examples to evaluate on.",
        "shuffle_buffer": "How many examples are buffered for shuffling.",
        "skip_bad_examples": "Skip and count records that cannot be used, instead of stopping at them.",
    },
    "Model": {
        "vocabulary": "The vocabulary of a new encoder: the folder that `polyencoder vocab --type bpe` wrote, or the "
        "paper's own, vocab.json and merges.txt.",
        "backbone": "Continue with this encoder and its own tokenizer instead: folder or hub id.",
        "n_layers": "Layers of a new encoder (default: 12).",
        "embedding_size": "Dimensions of a new encoder (default: 768).",
        "n_heads": "Attention heads of a new encoder (default: 12).",
        "ffn_size": "Dimensions of a new encoder's feed-forward layers (default: 3072).",
        "n_positions": "Maximum tokens of a sequence (default: 512, or the backbone's if fewer).",
        "text_truncate": "Maximum tokens of a context; its latest turns are kept (default: as many as fit).",
        "history_size": "Maximum turns of a context.",
        "dropout": "Dropout of embeddings and layers.",
        "attention_dropout": "Dropout of attention weights.",
    },
    "Training": {
        "mask_probability": "Share of the words that are masked.",
        "next": "yes-no: whether a response follows, as in the paper; contrastive: which one of the batch does.",
        "reduction": "How contrastive pools outputs into a vector (default: a sentence encoder's own, else first).",
        "tokens_per_batch": "Tokens per batch and process, including padding.",
        "max_steps": "Maximum number of updates.",
        "max_seconds": "Maximum training time in seconds.",
        "learning_rate": "Peak learning rate, after the warm-up.",
        "optimizer": "adamw, adam, adamax, sgd or adadelta.",
        "beta1": "First beta of adamw, adam and adamax.",
        "beta2": "Second beta of adamw, adam and adamax.",
        "weight_decay": "Weight decay of matrices.",
        "schedule": "invsqrt, linear, cosine or constant.",
        "warmup_steps": f"Updates of linear warm-up (default: {WARMUP_SHARE:.0%} of the run).",
        "precision": "float32, bfloat16 or, on a GPU, float16.",
        "bf16": "Short for --precision bfloat16.",
        "accumulate": "Batches per update (gradient accumulation).",
        "clip": "Maximum gradient norm, 0 for no limit.",
        "max_nonfinite": "End the run with an error after this many non-finite updates in a row.",
        "seed": "Random seed; equal seeds give equal runs.",
    },
    "Evaluation and checkpoints": {
        "evaluate_every": "Updates between evaluations; the encoder is written after each.",
        "save_every_seconds": "Write a checkpoint this often.",
        "device": "For example cpu or cuda:1 (default: CUDA if available).",
    },
}


def pretrain_encoder(
    corpus: Annotated[
        list[str],
        typer.Argument(
            help="FILE or GLOB: JSON lines with turns, context and response, sentences, or text; text files with one "
            "article per line, its sentences separated by tabs, or one sentence per line; Ubuntu's CSV, DSTC7's JSON. "
            "Plain, .gz, .bz2, .xz or .zst."
        ),
    ],
    **given: Any,
) -> None:
    """Pre-train an encoder with masked words and next utterances; torchrun starts several processes."""
    flags = {name: value for name, value in given.items() if value is not None}
    checked = checked_values(PretrainingSettings, flags, origin=None)
    settings = PretrainingSettings(corpus=tuple(corpus), **checked)
    check_writable_folder(settings.out, argument="out")
    with one_of_several(settings) as (settings, first), logged(show=first):
        report = pretrain(settings)
        if first:
            typer.echo(_summary(report))
            if report.not_learnt:
                advice = "train longer, or with another learning rate"
                typer.echo(f"warning: little was learnt: {'; '.join(report.not_learnt)}. {advice}", err=True)


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
            f"{report.out}: written. Next: polyencoder train --backbone {shlex.quote(str(report.out))} "
            "--train FILE --out FOLDER" + report.ranker_flags,
        ]
    )


with_flags(pretrain_encoder, PretrainingSettings, HELP)
