"""The source `fixed`: a list of candidates for all examples, and the index of their vectors."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Hashable, Iterator, Sequence

import parlai.utils.logging as logging
import torch
from parlai.agents.ranker.dialogue.collected import collect_task_candidates
from parlai.agents.ranker.dialogue.listed import ListedSource
from parlai.core.message import Message
from parlai.core.opt import Opt
from parlai.core.torch_agent import Batch
from parlai.utils.distributed import is_primary_worker
from torch import Tensor

from polyencoder.data.pool import CandidatePool, build_fixed_pool
from polyencoder.encoding.encode import encode_candidates
from polyencoder.encoding.tokens import tokenize_candidates
from polyencoder.errors import CheckpointError, InputError, PolyencoderError
from polyencoder.index import Candidate, FolderIndex, build_index
from polyencoder.index.build_options import SHARD_SIZE
from polyencoder.index.candidates import candidates_from
from polyencoder.index.folder.build import compute_candidates_digest
from polyencoder.index.folder.files import remove_index
from polyencoder.ranker import Ranker
from polyencoder.scoring.tokens import TokenVectors
from polyencoder.text import TokenBatch


def read_candidates(path: str) -> list[str]:
    """The distinct texts of a file of candidates, in order; `polyencoder index` reads the same files."""
    try:
        texts = list(dict.fromkeys(candidate.text.strip() for candidate in candidates_from(path)))
    except InputError as error:
        raise InputError(f"--fixed-candidates-path {error}") from None
    if not texts:
        raise InputError(f"--fixed-candidates-path {path}: is empty; give a text file with one candidate a line")
    return texts


class FixedSource(ListedSource):
    """The same candidates for all examples (`fixed`): the lines of a file, or the labels of a task.

    Their vectors are stored on disk, in a memory-mapped index of the library, which records its model, tokenizer and
    candidates. Beside the model, an index of another model or of other candidates is rebuilt; in a folder that the user
    named in `--fixed-candidate-vecs`, it is an error.
    """

    has_n = True
    _all_vectors: list[Tensor] | None = None
    _fixed_keys: Sequence[Hashable] | None = None

    def __init__(self, name: str, opt: Opt) -> None:
        super().__init__(name, opt)
        path = opt.get("fixed_candidates_path") or collect_task_candidates(opt)
        self.texts, setting, model_file = read_candidates(path), opt.get("fixed_candidate_vecs"), opt.get("model_file")
        self._replaces, self._is_named = setting == "replace", setting not in (None, "", "reuse", "replace")
        beside = f"{model_file}.{os.path.basename(path)}.index" if model_file else None
        self._folder: str | None = setting if self._is_named else beside
        self.among = self.rows = {text: row for row, text in enumerate(self.texts)}
        self.blocks_repeats = bool(opt.get("repeat_blocking_heuristic"))
        self._adds_label = bool(opt.get("add_label_to_fixed_cands"))

    def find_problem(self, obs: Message) -> str | None:
        label = obs.get("label_choice")
        if label is not None and len(self.texts) == 1:
            return (
                f"cannot be ranked: with {self.get_flag(obs)} fixed and one candidate there is nothing to choose; give "
                "more in --fixed-candidates-path"
            )
        if label is None or self._adds_label or label.strip() in self.rows:
            return None
        return (
            "has a label that is not among the fixed candidates (--add-label-to-fixed-cands true makes it a candidate "
            "of this example)"
        )

    def build_pool(self, batch: Batch) -> CandidatePool:
        labels = batch.labels and [label.strip() for label in batch.labels]
        return build_fixed_pool(self.texts, self.rows, labels, add=self._adds_label)

    def open(self, ranker: Callable[[], Ranker], *, autocast: Callable[[], torch.autocast], learns: bool) -> None:
        super().open(ranker, autocast=autocast, learns=learns)
        if self.opt.get("interactive_mode"):  # encoded before the first prompt
            with torch.no_grad(), autocast():
                loaded = ranker()
                loaded.model.eval()
                if loaded.model.reads_pairs:
                    self._read(loaded, self.texts)
                else:
                    self.list_vectors(loaded)

    def _score(self, contexts: TokenBatch, pool: CandidatePool, ranker: Ranker) -> Tensor:
        added, model = pool.texts[len(self.texts) :], ranker.model
        if model.reads_pairs:
            read = self._read(ranker, pool.texts)
            if read:
                return model.rescore(model.encode_context(contexts), read)
            return model(contexts, ranker.text.batch_candidates(pool.texts).to(ranker.device))
        encoded = model.encode_context(contexts)
        vectors = [*self.list_vectors(ranker), *([self._encode_texts(added, ranker)] if added else [])]
        return torch.cat([model.score(encoded, part) for part in vectors], dim=1)

    def _list_keys(self, pool: CandidatePool) -> Sequence[Hashable]:
        if self._fixed_keys is None:
            self._fixed_keys = super()._list_keys(build_fixed_pool(self.texts, self.rows, None, add=False))
        added = pool.texts[len(self.texts) :]
        return [*self._fixed_keys, *(super()._list_keys(CandidatePool(added)) if added else [])]

    def clear(self) -> None:
        """Drops the vectors after the model has changed; the index on disk is unchanged."""
        super().clear()
        self._all_vectors = None

    def _read(self, ranker: Ranker, texts: Sequence[str]) -> list[TokenVectors]:
        """Vectors of texts' tokens for a late-interaction encoder, cached; empty if too large, and for other models."""
        if ranker.model.token_dim is None:
            return []
        ids = tokenize_candidates(ranker.text, texts, remember=True)
        return self._read_candidates(ranker, ids) if self._reader.fits(ranker.model, ids) else []

    def list_vectors(self, ranker: Ranker) -> list[Tensor]:
        """Vectors of all candidates, in pieces [n, dim]: cached, else from the index, else encoded."""
        if self._all_vectors is None:
            stores = self.opt["encode_candidate_vecs"] and not self._learns
            index = self._index(ranker, self._folder) if self._folder and stores else None
            if index is None:
                size = self.opt.get("encode_candidate_vecs_batchsize", 256)
                self._all_vectors = [encode_candidates(ranker.model, ranker.text, self.texts, batch_size=size)]
            else:
                like = next(ranker.model.parameters())
                self._all_vectors = [
                    torch.tensor(block.read_vectors()).to(like) for block in index.vectors.iter_blocks(SHARD_SIZE)
                ]
        return self._all_vectors

    def _index(self, ranker: Ranker, folder: str) -> FolderIndex | None:
        """The index on disk, built if necessary; None in a process that waits for another to build it, or if it
        cannot be written."""
        if not self._replaces:
            try:
                return self._open_existing(ranker, folder)
            except PolyencoderError as error:
                is_empty = not os.path.exists(folder) or (os.path.isdir(folder) and not os.listdir(folder))
                if self._is_named and is_primary_worker() and not is_empty:
                    raise InputError(
                        f"--fixed-candidate-vecs {folder}: is not an index of these candidates by this model "
                        f"({error}); nothing in it was changed. Name the folder of such an index, or one that does not "
                        "exist yet"
                    ) from error
                if os.path.exists(folder):
                    logging.info(f"rebuilding: {error}")
        if not is_primary_worker():
            return None
        try:
            if not self._is_named:
                remove_index(folder)
            with torch.autocast(ranker.device.type, enabled=False):  # without --bf16, which is only for scoring
                build_index(folder, self._read_records(), ranker)
        except (OSError, InputError) as error:
            if self._is_named or not isinstance(error.__cause__ or error, OSError | sqlite3.Error):
                raise
            logging.warning(f"the vectors of the fixed candidates are only kept in memory: {error}")
            return None
        logging.info(f"{len(self.texts)} fixed candidates encoded into the index {folder}")
        return self._open_existing(ranker, folder)

    def _open_existing(self, ranker: Ranker, folder: str) -> FolderIndex:
        """The index in the folder. CheckpointError if missing, or of another model or other candidates."""
        index = FolderIndex.open(folder, ranker)
        if index.meta.candidates != compute_candidates_digest(self._read_records()):
            raise CheckpointError(f"{folder}: an index of other candidates")
        return index

    def _read_records(self) -> Iterator[Candidate]:
        return (Candidate(None, text) for text in self.texts)
