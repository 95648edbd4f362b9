"""`IntentClassifier`: an encoder, a head and the names of its labels; and the folder that keeps head and names."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from polyencoder.errors import CheckpointError, ConfigError, first_line
from polyencoder.intents.head import Head, HeadConfig
from polyencoder.ranker.encoding import VectorKind
from polyencoder.ranker.scorer import Scorer
from polyencoder.storage.checkpoint import WeightDtype, model_fingerprint
from polyencoder.storage.files import explaining, replacing

__all__ = ["HEAD", "HEAD_WEIGHTS", "EncoderSource", "IntentClassifier", "Prediction"]

HEAD, HEAD_WEIGHTS = "head.json", "head.safetensors"
FORMAT_VERSION = 1
ROUNDED: tuple[WeightDtype, ...] = ("float16", "bfloat16")  # as `polyencoder export --dtype` may have kept the encoder


class Prediction(NamedTuple):
    """What a text means."""

    label: str | None
    """The most probable; None where it is less probable than asked for: none of these."""
    probability: float
    """Of the most probable, whether it is given or not."""
    best: list[tuple[str, float]]
    """The most probable labels, best first, with their probabilities."""


class EncoderSource(NamedTuple):
    """Where the encoder of a head is: a ranker, or a pre-trained encoder; a path or a hub id."""

    model: str | None = None
    backbone: str | None = None


class IntentClassifier:
    """Labels texts by an encoder's vectors of them and a head.

    Args:
        encoder: a ranker, whose vectors the head learnt from.
        head: with as many outputs as there are labels.
        labels: their names, in the order of the outputs.
        kind: of the vectors.
        temperature: what logits are divided by before they are probabilities.
    """

    def __init__(
        self,
        encoder: Scorer,
        head: Head,
        labels: Sequence[str],
        *,
        kind: VectorKind = "pooled",
        temperature: float = 1.0,
    ) -> None:
        self.encoder = encoder
        self.head = head.eval()
        self.labels = list(labels)
        self.kind: VectorKind = kind
        self.temperature = temperature

    def predict(
        self, texts: Sequence[str], *, min_probability: float = 0.0, top_k: int = 3, batch_size: int = 256
    ) -> list[Prediction]:
        """What each text means.

        Args:
            texts: one at least.
            min_probability: less probable labels are none of these: 0 to 1.
            top_k: how many labels `Prediction.best` has.
            batch_size: texts that go through the encoder together.

        Raises:
            InputError: there is no text, or one is empty.
            ConfigError: `min_probability` is no probability.
        """
        if not 0 <= min_probability <= 1:
            raise ConfigError(f"min_probability is {min_probability}; it must be 0 to 1", argument="min_probability")
        probabilities, places = self.probabilities(texts, batch_size=batch_size).topk(min(top_k, len(self.labels)))
        found = []
        for values, names in zip(probabilities.tolist(), places.tolist(), strict=True):
            best = [(self.labels[name], value) for name, value in zip(names, values, strict=True)]
            label, probability = best[0]
            found.append(Prediction(label if probability >= min_probability else None, probability, best))
        return found

    def probabilities(self, texts: Sequence[str], *, batch_size: int = 256) -> Tensor:
        """Those of each label, [texts, labels], on the CPU."""
        lines = [" ".join(text.split()) if isinstance(text, str) else text for text in texts]
        return self.of_vectors(torch.from_numpy(self.encoder.encode(lines, kind=self.kind, batch_size=batch_size)))

    @torch.inference_mode()
    def of_vectors(self, vectors: Tensor) -> Tensor:
        """The same of vectors that are known."""
        logits: Tensor = self.head(vectors)
        return (logits / self.temperature).softmax(1)

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        source: EncoderSource | None = None,
        measured: dict[str, Any] | None = None,
    ) -> None:
        """Write `head.json` and `head.safetensors`; the encoder stays where it is.

        Args:
            folder: made where there is none.
            source: where the encoder is, for those who load the head.
            measured: what is known of it, for those who read the file.

        Raises:
            CheckpointError: it cannot be written.
        """
        target = Path(folder)
        values = {
            "format_version": FORMAT_VERSION,
            "labels": self.labels,
            "head": dataclasses.asdict(self.head.config),
            "inputs": self.head.mean.numel(),
            "kind": self.kind,
            "temperature": self.temperature,
            "encoder": model_fingerprint(self.encoder.model, self.encoder.text),
            "rounded": [model_fingerprint(self.encoder.model, self.encoder.text, dtype=dtype) for dtype in ROUNDED],
            "source": (source or EncoderSource())._asdict(),
            "measured": measured or {},
        }
        with (
            explaining(target, CheckpointError),
            replacing(target / HEAD) as head_file,
            replacing(target / HEAD_WEIGHTS) as weights_file,
        ):
            weights = {name: tensor.contiguous() for name, tensor in self.head.state_dict().items()}
            safetensors.torch.save_file(weights, weights_file, metadata={"format": "pt"})
            head_file.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def from_pretrained(
        cls, folder: str | os.PathLike[str], load: Callable[[EncoderSource], Scorer] | Scorer
    ) -> IntentClassifier:
        """The classifier whose head `save` wrote.

        Args:
            folder: of the head.
            load: its encoder; or what loads the encoder of a source.

        Raises:
            CheckpointError: a file is missing or damaged, or the encoder is another one than the head learnt with.
        """
        path = Path(folder) / HEAD
        values = _read(path)
        try:
            labels = [str(label) for label in values["labels"]]
            config = HeadConfig(**values["head"])
            source, kind = EncoderSource(**values["source"]), values["kind"]
            temperature = float(values["temperature"])
            if not (math.isfinite(temperature) and temperature > 0 and labels):
                raise ValueError(f"its temperature is {temperature}, of {len(labels)} labels")
            head = Head(config, inputs=int(values["inputs"]), labels=len(labels))
            same = {values["encoder"], *values.get("rounded", ())}  # which earlier files do not have
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {first_line(error)})") from None
        _load_weights(head, path.with_name(HEAD_WEIGHTS))
        encoder = load(source) if callable(load) else load
        if model_fingerprint(encoder.model, encoder.text) not in same:
            raise CheckpointError(
                f"{path}: learnt with another encoder than this one, which must be the same, or the same in 16 bits"
            )
        return cls(encoder, head, labels, kind=kind, temperature=temperature)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; it is what training a classifier of intents writes") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({first_line(error)})") from None
    version = values.get("format_version") if isinstance(values, dict) else None
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format version {version!r}, but this version of polyencoder reads {FORMAT_VERSION}"
        )
    assert isinstance(values, dict)
    return values


def _load_weights(head: Head, path: Path) -> None:
    try:
        weights = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: missing, damaged or not a safetensors file ({first_line(error)})") from None
    expected = head.state_dict()
    for name, tensor in expected.items():
        if name not in weights or weights[name].shape != tensor.shape or not weights[name].isfinite().all():
            raise CheckpointError(f"{path}: {name} is missing, of another shape, or has numbers that are not finite")
    head.load_state_dict({name: weights[name] for name in expected})
