"""`IntentClassifier`: an encoder, a head and its labels; saved as a folder with the head and the labels."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyencoder.checkpoint import load_weights, read_digests, save_weights, saved_with_weights
from polyencoder.checks import checked_count
from polyencoder.config import VectorKind, WeightDtype
from polyencoder.encoding.fingerprint import model_fingerprint
from polyencoder.encoding.scorer import Scorer
from polyencoder.errors import CheckpointError, ConfigError, first_line
from polyencoder.intents.head import Head
from polyencoder.settings.intents import HeadConfig
from polyencoder.storage.digests import file_digest
from polyencoder.storage.files import atomic_write, reporting_write_errors
from polyencoder.storage.safe_load import read_weights
from polyencoder.storage.versioned import versioned

HEAD, HEAD_WEIGHTS = "head.json", "head.safetensors"
FORMAT_VERSION = 1
ROUNDED: tuple[WeightDtype, ...] = ("float16", "bfloat16")  # as `polyencoder export --dtype` may have kept the encoder


class Prediction(NamedTuple):
    """The predicted label of a text."""

    label: str | None
    """The most probable; None if it is less probable than `min_probability`: none of these."""
    probability: float
    """Of the most probable label."""
    best: list[tuple[str, float]]
    """The most probable labels, best first, with their probabilities."""


class EncoderSource(NamedTuple):
    """The encoder of a head: a ranker, or a pre-trained encoder; a path or a hub id."""

    model: str | None = None
    backbone: str | None = None


class IntentClassifier:
    """Classifies texts by an encoder's vectors and a head.

    Args:
        encoder: a ranker, on whose vectors the head was trained.
        head: with one output per label.
        labels: in the order of the outputs.
        temperature: the divisor of the logits.
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

    def predict(self, texts: Sequence[str], *, min_probability: float = 0.0, top_k: int = 3) -> list[Prediction]:
        """Predicts the label of each text.

        Args:
            texts: at least one.
            min_probability: predict None, none of these, for less probable labels: 0 to 1.
            top_k: the number of labels in `Prediction.best`.

        Raises:
            InputError: there is no text, or one is empty, or `top_k` is too small.
            ConfigError: `min_probability` is no probability.
        """
        if not 0 <= min_probability <= 1:
            raise ConfigError(f"min_probability is {min_probability}; it must be 0 to 1", argument="min_probability")
        most = min(checked_count("top_k", top_k), len(self.labels))
        probabilities, places = self.probabilities(texts).topk(most)
        predictions = []
        for values, names in zip(probabilities.tolist(), places.tolist(), strict=True):
            best = [(self.labels[name], value) for name, value in zip(names, values, strict=True)]
            label, probability = best[0]
            predictions.append(Prediction(label if probability >= min_probability else None, probability, best))
        return predictions

    def probabilities(self, texts: Sequence[str]) -> Tensor:
        """The probability of each label, [texts, labels], on the CPU."""
        lines = [" ".join(text.split()) if isinstance(text, str) else text for text in texts]
        return self.of_vectors(torch.from_numpy(self.encoder.encode(lines, kind=self.kind)))

    @torch.inference_mode()
    def of_vectors(self, vectors: Tensor) -> Tensor:
        """Like `probabilities`, for vectors [texts, dim] of the encoder."""
        logits: Tensor = self.head(vectors)
        return (logits / self.temperature).softmax(1)

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        source: EncoderSource | None = None,
        measured: dict[str, Any] | None = None,
        overwrite: bool = True,
    ) -> None:
        """Writes `head.json` and `head.safetensors`, without the encoder. A kill leaves the old head or the new one.

        Args:
            folder: created if missing.
            source: the encoder, for those who load the head.
            measured: metrics, for those who read the file.
            overwrite: replace a head that is there.

        Raises:
            CheckpointError: it cannot be written, or without `overwrite` the folder holds a head.
        """
        target, encoder = Path(folder), self.encoder
        values = {
            "format_version": FORMAT_VERSION,
            "labels": self.labels,
            "head": dataclasses.asdict(self.head.config),
            "inputs": self.head.mean.numel(),
            "kind": self.kind,
            "temperature": self.temperature,
            "encoder": model_fingerprint(encoder.model, encoder.text),
            "rounded": [model_fingerprint(encoder.model, encoder.text, dtype=dtype) for dtype in ROUNDED],
            "source": (source or EncoderSource())._asdict(),
            "measured": measured or {},
        }
        with (
            reporting_write_errors(target, CheckpointError),
            atomic_write(target / HEAD) as head_file,
            atomic_write(target / HEAD_WEIGHTS, overwrite=overwrite) as weights_file,  # takes its place first
        ):
            weights = {name: tensor.contiguous() for name, tensor in self.head.state_dict().items()}
            head_file.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            save_weights(weights, weights_file, beside={HEAD: head_file})

    @classmethod
    def from_pretrained(
        cls, folder: str | os.PathLike[str], load: Callable[[EncoderSource], Scorer] | Scorer
    ) -> IntentClassifier:
        """Loads a head that `save` wrote.

        Args:
            folder: of the head.
            load: its encoder, or a function that loads the encoder of a source.

        Raises:
            CheckpointError: a file is missing or damaged, or the head was trained with another encoder.
        """
        path, weights_path = Path(folder) / HEAD, Path(folder) / HEAD_WEIGHTS
        digests: dict[str, str] = {}
        with suppress(CheckpointError):  # which is raised below, where the weights are read
            digests = read_digests(weights_path)
        path = saved_with_weights(path, digests.get(HEAD))
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise CheckpointError(
                f"{path}: no such file; `polyencoder intents train` writes it, where out is given"
            ) from None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({first_line(error)})") from None
        stored = versioned(content, _Stored.of, version=FORMAT_VERSION, origin=path, remedy="train the head again")
        weights = read_weights(weights_path)
        if read_digests(weights_path) != digests:  # another process saved a head meanwhile
            return cls.from_pretrained(folder, load)
        load_weights(stored.head, weights, origin=str(weights_path))
        if HEAD in digests and file_digest(path) != digests[HEAD]:
            raise CheckpointError(
                f"{path}: not the file that was saved with {HEAD_WEIGHTS}: a copy was interrupted, or it was changed "
                "since; copy or train the head again"
            )
        encoder = load(stored.source) if callable(load) else load
        if model_fingerprint(encoder.model, encoder.text) not in stored.encoders:
            raise CheckpointError(
                f"{path}: trained with another encoder than this one, which must be the same, or the same in 16 bits"
            )
        return cls(encoder, stored.head, stored.labels, kind=stored.kind, temperature=stored.temperature)


class _Stored(NamedTuple):
    """What `head.json` holds."""

    head: Head
    """Without its weights."""
    labels: list[str]
    source: EncoderSource
    kind: VectorKind
    temperature: float
    encoders: set[str]
    """The fingerprints of those that it fits."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> _Stored:
        labels, temperature = [str(label) for label in values["labels"]], float(values["temperature"])
        if not (math.isfinite(temperature) and temperature > 0 and labels):
            raise ValueError(f"its temperature is {temperature}, of {len(labels)} labels")
        head = Head(HeadConfig(**values["head"]), inputs=int(values["inputs"]), labels=len(labels))
        encoders = {values["encoder"], *values["rounded"]}
        return cls(head, labels, EncoderSource(**values["source"]), values["kind"], temperature, encoders)
