"""Settings shared by several commands: the model and how it runs, the columns of a file of pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from polyencoder.config import Backend, WeightDtype
from polyencoder.data.layouts import Columns
from polyencoder.data.readers import parse_delimiter
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.metadata import Without
from polyencoder.text.dialogue import SystemMessages


@settings()
class RunningSettings(Settings):
    """Settings of a model's execution."""

    device: str | None = None
    """For example cpu or cuda:1 (default: CUDA if available)."""
    model_dtype: WeightDtype = "float32"
    """Precision of the encoder: bfloat16 is faster on machines that support it. Indexes and calibrations work with
    both."""
    backend: Backend = "torch"
    """The backend that runs the model: torch, or, for an exported folder, onnx or onnx-int8."""


@settings()
class RankerSettings(RunningSettings):
    """A ranker, and how it runs."""

    model: Annotated[str, Parameter(alias="-m")]
    """A model folder, a model file of parlai train_model, or a hub id."""


@settings()
class MakerSettings(RunningSettings):
    """The model that makes an index, or that made the vectors of one, and how it runs."""

    model: Annotated[str | None, Parameter(alias="-m")] = None
    """A model folder, a model file of parlai train_model, or a hub id; with --vectors, the one that made them."""


@settings()
class RankerOrBackbone(RunningSettings):
    """A ranker, or a pre-trained encoder in its place."""

    model: Annotated[str | None, Parameter(alias="-m")] = None
    """A model folder, a model file of parlai train_model, or a hub id."""
    backbone: Annotated[str | None, Without("model"), Without("backend"), Without("model_dtype")] = None
    """Use a pre-trained encoder instead of a model, without training: folder or hub id."""


@settings()
class PairColumns(Settings):
    """The columns of a file of contexts with their responses."""

    context: str = "context"
    """The column with the context: a text or a list of turns."""
    response: str = "response"
    """The column with the right response."""
    responses: str = "responses"
    """The column with several right responses, in place of one: a list, or one text joined by |."""
    labels: str = "labels"
    """The column with a number for each candidate, 0 for a wrong one and more for a better one, in place of a
    response: a list, or numbers joined by |."""
    negatives_column: str = "negatives"
    """The column with wrong responses alone, in place of candidates: a list, or one text joined by |."""
    system: SystemMessages = "leave-out"
    """The system messages of chats: left out, or the persona before the conversation."""
    roles: str = ""
    """Who answers in chats, such as agent,bot (default: assistant and gpt)."""
    delimiter: str | None = None
    """The separator of the columns of CSV and TSV: a character, tab, semicolon or pipe (default: what the first rows
    show)."""

    @property
    def columns(self) -> Columns:
        return Columns(
            self.context,
            self.response,
            responses=self.responses,
            labels=self.labels,
            negatives=self.negatives_column,
            system=self.system,
            roles=tuple(filter(None, map(str.strip, self.roles.split(",")))),
            delimiter=parse_delimiter(self.delimiter),
        )


@settings()
class ColumnSettings(PairColumns):
    """The columns of a file of pairs that may have candidates of their own."""

    candidates: str = "candidates"
    """The column with candidates: a list, or one text joined by |."""

    @property
    def columns(self) -> Columns:
        return replace(super().columns, candidates=self.candidates)
