"""The card of a pre-trained encoder: what it is, what it has read, and what it knows of text that was held out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from polyencoder.pretraining.settings import PretrainingSettings
from polyencoder.pretraining.start import Pretrained

__all__ = ["encoder_card"]

_NOT_SHOWN = {"corpus", "out", "valid", "vocabulary", "backbone", "device"}


def encoder_card(
    pretrained: Pretrained, settings: PretrainingSettings, report: Mapping[str, float], *, updates: int, tokens: int
) -> str:
    """The README.md of an encoder's folder; paths of the machine are cut to their last part.

    `updates`, and `tokens` of all processes: what it was trained for. `report`: of held-out text.
    """
    config, name = pretrained.model.encoder.model.config, Path(settings.out).resolve().name
    facts = {
        "encoder": f"{config.model_type}, {config.num_hidden_layers} layers, {config.hidden_size} dimensions, "
        f"{config.vocab_size:,} tokens",
        "began as": Path(settings.backbone).name if settings.backbone else "new",
        "corpus": ", ".join(Path(file).name for file in settings.corpus),
        "trained for": f"{updates:,} updates, {tokens:,} tokens, seed {settings.seed}",
        "held-out masked words": f"perplexity {report['perplexity']:.1f}, {report['masked_accuracy']:.3f} right",
        "held-out next utterances": f"{report['next_accuracy']:.3f} right, of two",
    }
    given = {
        field.name: value
        for field in dataclasses.fields(settings)
        if field.name not in _NOT_SHOWN and (value := getattr(settings, field.name)) != field.default
    }
    use = f"polyencoder train --backbone {name} --train my/train.jsonl --valid my/valid.jsonl --out runs/my"
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "tags:",
            "- response-selection",
            "- dialogue",
            "---",
            "",
            f"# {name}",
            "",
            "An encoder that was pre-trained with masked words and next utterances, to make rankers of.",
            "",
            "| | |",
            "| --- | --- |",
            *(f"| {what} | {value} |" for what, value in facts.items()),
            *(f"| `--{name.replace('_', '-')}` | `{value}` |" for name, value in given.items()),
            "",
            "```sh",
            use,
            "```",
            "",
            "`AutoModel` and `AutoTokenizer` read it; a cross-encoder begins with its head for next utterances.",
            "",
        ]
    )
