"""The model card of a pre-trained encoder: its sizes, its corpus and its held-out metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyencoder.config import TextConfig
from polyencoder.errors import CheckpointError
from polyencoder.export.card import format_code, format_table, format_text
from polyencoder.export.folder import README
from polyencoder.export.metadata import build_results, cut_folder, format_front_matter, parse_hub_id
from polyencoder.pretraining.start import Pretrained
from polyencoder.storage.files import reporting_write_errors, write_text

TASK = "fill-mask"
"""The hub's name of the task of pre-trained encoders."""


def write_encoder_card(
    pretrained: Pretrained,
    folder: str,
    report: Mapping[str, float],
    *,
    backbone: str | None,
    corpus: Sequence[str],
    flags: Mapping[str, Any],
    seed: int | None,
    updates: int,
    tokens: int,
) -> str:
    """The README.md of an encoder's folder; paths are cut to their last part.

    report: held-out `perplexity`, `masked_accuracy` and `next_accuracy`, if known. backbone: the encoder that was
    continued, if any. corpus: files, or names of tasks. updates, tokens: of its training, in all processes.
    """
    config, name = pretrained.model.encoder.model.config, format_text(Path(folder).resolve().name)
    has_head = pretrained.model.next_utterance is not None
    chance = "" if seed is None else f", seed {seed}"
    facts = {
        "encoder": f"{config.model_type}, {config.num_hidden_layers} layers, {config.hidden_size} dimensions, "
        f"{config.vocab_size:,} tokens",
        "began as": Path(backbone).name if backbone else "new",
        "corpus": ", ".join(Path(file).name for file in corpus),
        "trained for": f"{updates:,} updates, {tokens:,} tokens{chance}",
    }
    if "perplexity" in report:
        right = f"{report['masked_accuracy']:.3f} right"
        facts["held-out masked words"] = f"perplexity {report['perplexity']:.1f}, {right}"
        among = "two" if has_head else "those of a batch"
        facts["held-out next utterances"] = f"{report['next_accuracy']:.3f} right, of {among}"
    use = f"polyencoder train --backbone {name} --train my/train.jsonl --valid my/valid.jsonl --out runs/my"
    use += format_ranker_flags(pretrained)
    head = "; a cross-encoder begins with its head for next utterances" if has_head else ""
    rows = [(label, format_text(value)) for label, value in facts.items()]
    rows += [
        (format_code(f"--{name.replace('_', '-')}"), format_code(cut_folder(value))) for name, value in flags.items()
    ]
    parts = [
        format_front_matter(
            name=name,
            library="transformers",
            task=TASK,
            tags=["response-selection", "dialogue"],
            base_model=parse_hub_id(backbone),
            results=build_results(
                report, task=TASK, task_name="Masked words and next utterances", dataset=facts["corpus"]
            ),
        ),
        f"# {name}",
        "An encoder that was pre-trained with masked words and next utterances, to make rankers of.",
        format_table(("", ""), rows),
        f"```sh\n{use}\n```",
        f"`AutoModel` and `AutoTokenizer` read it{head}.",
    ]
    return "\n\n".join(parts) + "\n"


def write_encoder(pretrained: Pretrained, folder: str, report: Mapping[str, float], **facts: Any) -> None:
    """Writes an encoder's folder and card, see `write_encoder_card`. CheckpointError: it cannot be written."""
    pretrained.save(folder)
    with reporting_write_errors(folder, CheckpointError):
        write_text(Path(folder) / README, write_encoder_card(pretrained, folder, report, **facts))


def format_ranker_flags(pretrained: Pretrained) -> str:
    """Flags of `polyencoder train` for a ranker from this encoder, each with a leading space.

    The whole encoder is trained, as with the paper's weights (Humeau et al., Section 5.3). Contexts and candidates are
    at most as long as its sequences. Where pre-training compared vectors, the ranker scores as pre-training did.
    """
    longest, model = pretrained.longest, pretrained.model
    lengths = {"text-truncate": TextConfig.text_truncate, "label-truncate": TextConfig.label_truncate}
    flags = [f"--{name} {longest}" for name, length in lengths.items() if length > longest] + ["--fine-tuned all"]
    if model.next_utterance is None:
        flags += [f"--reduction {model.reduction}"] if model.reduction != "first" else []
        flags += ["--normalize"] if model.normalize else []
        power = 0.25 if model.normalize else -0.25  # both vectors are multiplied by it
        flags += [f"--output-scaling {float(f'{model.encoder.dim**power:.4g}')}"]
    return "".join(f" {flag}" for flag in flags)
