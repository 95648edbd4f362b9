"""`polyencoder pretrain`: pre-trains an encoder on your own texts."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from polyencoder.cli.shared.output import say
from polyencoder.cli.shared.processes import one_of_several
from polyencoder.settings.pretrain import PretrainingSettings
from polyencoder.storage.files import check_writable_folder

if TYPE_CHECKING:
    from polyencoder.pretraining.run import PretrainingReport


def pretrain_encoder(settings: PretrainingSettings) -> None:
    """Pre-train an encoder with masked words and next utterances; torchrun starts several processes."""
    from polyencoder.pretraining.run import pretrain
    from polyencoder.training.console import logged

    check_writable_folder(settings.data.out, argument="out")
    with one_of_several(settings) as (settings, first), logged(show=first):
        report = pretrain(settings)
        if first:
            say(_summary(report))
            if report.at_chance:
                advice = "train longer, or with another learning rate"
                say(f"warning: the classifier learned little: {'; '.join(report.at_chance)}. {advice}", err=True)


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
