"""Commands that do not exist, or no longer, and flags of others, each with what to use in their place."""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "encode-candidates": "use encode --kind candidate --out X.parquet, or examples/encode_with_ray.py",
    "intents": "examples/intents.py classifies by scikit-learn on the vectors of `polyencoder encode`",
    "map": "python -m benchmarks.reproduce.map in the repository measures the baseline MAP",
    "overlap": "compare the texts of your files with a few lines of your own",
    "report": "the README.md of a run's folder has its measures, curve and worst errors",
    "tune": "examples/tune.py in the repository searches settings with Optuna",
}
"""Each removed command's replacement, a sentence without its full stop."""

FLAGS: dict[tuple[str, str], str] = {
    ("evaluate", "context_vector"): "parlai eval_model has it; in Python, set ranker.model.context_vector",
    ("evaluate", "extra_contexts"): "parlai eval_model has it; or give examples of fewer turns",
}
"""Removed flags of a command, by both names, with the replacement; `guesses.REMOVED` has those of any command."""

GUESSED_COMMANDS: dict[str, str] = {
    "rerank": "rank ranks a list of candidates, and search --rerank MODEL reranks what an index finds",
    "predict": "rank ranks a list of candidates, and search finds the best of an index",
    "embed": "encode writes vectors",
    **dict.fromkeys(("add", "remove", "delete"), "update changes an index, by --add or --remove"),
    "version": "--version prints the versions",
    "help": "--help lists the commands",
}
"""The command to use in place of a command's name in other libraries, a sentence without its full stop."""

GUESSED_FLAGS: dict[str, tuple[str, ...]] = {
    "lr": ("learning-rate",),
    "model": ("backbone",),
    "model-name-or-path": ("model", "backbone"),
    "output": ("out",),
    "output-dir": ("out",),
    "output-path": ("out",),
    "fp16": ("precision float16", "model-dtype float16"),
    "precision": ("risk",),
    "arch": ("architecture",),
    "format": ("onnx",),
    "max-length": ("text-truncate",),
    "max-seq-length": ("text-truncate",),
    "num-train-epochs": ("epochs",),
    "per-device-train-batch-size": ("batch-size",),
}
"""Flags of other command lines, and those that mean the same here, beside the names of `polyencoder.guesses`."""
