"""`FaissFile`: what the description of an index says of its FAISS index."""

from __future__ import annotations

from polyencoder.errors import ConfigError
from polyencoder.index.faiss.kinds import KINDS, Parameters, check_parameters
from polyencoder.validation import validated


@validated
class Tuned:
    """The measured settings that reach a recall: a search's defaults.

    Args:
        recall: the requested recall.
        effort: `ef_search` or `nprobe`.
        list_length: candidates proposed by each code, or group of codes.
        measured: the recall@top_k that they reached, compared with the scan.
        error: the standard error of a recall measured on `contexts` contexts (see `index.faiss.tuning`).
        contexts: their number.
        source: where the contexts came from.
        rows: the number of vectors at that time.
        vs_scan: speed relative to the scan, for batches of contexts.
    """

    recall: float
    top_k: int
    effort: int
    list_length: int
    measured: float
    error: float
    contexts: int
    source: str
    rows: int
    vs_scan: float

    @property
    def reached(self) -> bool:
        """Whether the measured recall exceeds the requested one by its standard error."""
        return self.measured - self.error >= self.recall or self.measured == 1

    def __str__(self) -> str:
        by = f"effort {self.effort}, lists of {self.list_length}, {self.vs_scan:g} times the scan's speed"
        over = f"{self.contexts} contexts{f' of {self.source}' if self.source else ''}"
        return f"recall@{self.top_k} {self.measured:.4f} (standard error {self.error:.4f}, {over}) by {by}"


@validated
class FaissFile:
    """A FAISS index: its file and build settings.

    Args:
        kind: one of `kinds.KINDS`.
        rows: the index covers the rows 0 to `rows` - 1.
        max_norm: the length of the longest vector, for the rounding error of inner products.
        parameters: of the build; `ef_search` (hnsw) and `nprobe` (ivf) are a search's defaults.
        signature: of the file, checked before FAISS reads it (`polyencoder.storage.signatures`).
        tuned: the measured defaults of a search (see `tuning`); None if not tuned.
    """

    file: str
    kind: str
    rows: int
    max_norm: float
    parameters: Parameters
    signature: str
    tuned: Tuned | None = None

    def __str__(self) -> str:
        parameters = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"FAISS {self.kind} ({parameters}), of {self.rows:,} vectors"

    def __post_init__(self) -> None:
        check_parameters(self.kind, self.parameters)
        if missing := {*KINDS[self.kind]} - {*self.parameters}:
            raise ConfigError(f"a {self.kind} index without {missing.pop()}")

    @property
    def effort(self) -> int:
        """The default effort of searches."""
        if self.tuned is not None:
            return self.tuned.effort
        return int(self.parameters["ef_search" if self.kind == "hnsw" else "nprobe"])

    @property
    def has_exact_lists(self) -> bool:
        """Whether a search of all its lists returns exactly the nearest rows."""
        return self.kind == "ivf-flat" and self.parameters["storage"] == "float32"
