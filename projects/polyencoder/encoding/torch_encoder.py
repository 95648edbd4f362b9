"""`TorchEncoder`: a torch model as an `Encoder`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import torch

from polyencoder.checks import check_device
from polyencoder.encoding.encode import encode_ids, encode_token_ids, read_candidates
from polyencoder.encoding.encoder import BATCH_SIZE, Encoder, Ids, Progress
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.mode import in_evaluation
from polyencoder.modeling.rounding import get_weights_state, sample_weights
from polyencoder.search.contexts import Array, Contexts, to_array
from polyencoder.search.late import TokenVectors
from polyencoder.text.encoder import TextEncoder

_PAIRS = 1 << 15  # of contexts and candidates whose tokens are in memory at once


class TorchEncoder(Encoder):
    """Dropout is off; the model's mode is unchanged. The model is moved to the device."""

    def __init__(self, model: RankerModel, text: TextEncoder, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.device = check_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model: RankerModel = model.to(self.device)
        self.text = text

    @property
    def facts(self) -> tuple[str, str]:
        weights = list(self.model.parameters())
        size = f"{sum(weight.numel() for weight in weights) / 1e6:.1f}M parameters"
        return size, str(weights[0].dtype).removeprefix("torch.")

    @torch.inference_mode()
    def encode_contexts(
        self, ids: Sequence[Ids], *, batch_size: int = BATCH_SIZE, max_tokens: int | None = None
    ) -> Contexts:
        with in_evaluation(self.model):
            encoded = encode_token_ids(self.model, self.text, ids, batch_size=batch_size, max_tokens=max_tokens)
            return Contexts.from_encoding(encoded)

    @torch.inference_mode()
    def encode_candidates(
        self, ids: Sequence[Ids], *, batch_size: int = BATCH_SIZE, progress: Progress | None = None
    ) -> Array:
        model = self.model
        if not ids:
            return np.empty((0, model.dim), dtype=np.float32)
        with in_evaluation(model):
            encode = model.encode_candidates
            return to_array(encode_ids(encode, ids, self.text, model, batch_size=batch_size, progress=progress))

    @torch.inference_mode()
    def encode_pooled(
        self, ids: Sequence[Ids], *, batch_size: int = BATCH_SIZE, progress: Progress | None = None
    ) -> Array:
        model = self.model
        with in_evaluation(model):
            return to_array(encode_ids(model.pooled, ids, self.text, model, batch_size=batch_size, progress=progress))

    @torch.inference_mode()
    def read_candidates(
        self, ids: Sequence[Ids], *, max_tokens: int | None = None, progress: Progress | None = None
    ) -> list[TokenVectors]:
        results: list[TokenVectors | None] = [None] * len(ids)
        with in_evaluation(self.model):
            for batch, read in read_candidates(self.model, self.text, ids, max_tokens=max_tokens):
                for row, vectors in zip(batch, read, strict=True):  # copies, as a view would keep its whole batch
                    results[row] = TokenVectors(to_array(vectors.vector).copy(), to_array(vectors.tokens).copy())
                if progress is not None:
                    progress(len(batch))
        return [vectors for vectors in results if vectors is not None]

    @torch.inference_mode()
    def score_pairs(
        self, contexts: Sequence[Ids], candidates: Sequence[Ids], index: Array, *, max_tokens: int | None = None
    ) -> Array:
        pad, parts = self.text.pad, []
        with in_evaluation(self.model):
            texts = pad(candidates).to(self.device)
            chunk_size = max(1, _PAIRS // max(1, index.shape[1]))
            for start in range(0, len(contexts), chunk_size):
                part = slice(start, start + chunk_size)
                columns = torch.tensor(index[part], device=self.device)
                scores = self.model(pad(contexts[part]).to(self.device), texts, columns, max_tokens=max_tokens)
                parts.append(to_array(scores))
        return np.concatenate(parts)

    def get_term_weights(self) -> Mapping[str, Sequence[float]] | None:
        return {name: weight.tolist() for name, weight in self.model.export_weights().items()} or None

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    def copy_to_worker(self, *, number: int, threads: int) -> TorchEncoder:
        torch.set_num_threads(threads)
        device = f"cuda:{number % torch.cuda.device_count()}" if self.device.type == "cuda" else "cpu"
        return TorchEncoder(self.model, self.text, device=device)

    def get_state(self) -> Hashable:
        model, kind = self.model, self.device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return autocast, get_weights_state(model), sample_weights(model), model.config
