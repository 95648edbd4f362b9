"""Ranks lists of candidates by late interaction: ours beside a ColBERT of sentence-transformers or PyLate.

Milliseconds of processor time, medians, from a context and texts to the ten best, the context included. Both take turns
in one process, around one encoder; added layers are untrained, since times do not depend on them.
- `unseen_ms`: candidates that were never seen before, by `Ranker.rank`; by `encode_query`, `encode_document` and
  `similarity`;
- `kept_ms`: the same candidates once more: our ranker remembers their token vectors, theirs are a list of tensors;
- `stored_ms`: ours in an index with `store_tokens="int8"`, where all candidates are scored.

sentence-transformers' `MultiVectorEncoder` is measured with its default, a new projection of tokens to 128 dimensions,
and without; with `--peer pylate`, PyLate's `ColBERT` with that projection, its default.
`.._bytes` of a candidate: its token vectors, for ours in an index, with the vector by which it is searched.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.common import (
    build_parser,
    find_minilm_folder,
    import_peer,
    measure_processor_ms,
    print_report,
    use_threads,
)
from benchmarks.search.texts import read_candidates, read_contexts
from polyencoder import Ranker
from polyencoder.index.searcher import Searcher

TOKENS = 360
"""Length limit of a text."""
CANDIDATE_TOKENS = 72
"""Length limit of a candidate for PyLate, which pads each text to its limit in training."""
COUNTS = (20, 100, 1_000)
OURS = "late-interaction"
TOP_K = 10
WARM_UP = 20  # candidates of an uncounted list


def load_multi_vector_encoder(backbone: str | Path, *, projected: bool, config: Mapping[str, Any] | None = None) -> Any:
    """Makes their model of an encoder: with a new projection to 128 dimensions, or by the encoder's own outputs."""
    package = import_peer("sentence_transformers")
    dense = import_peer("sentence_transformers.base.modules.dense").Dense
    model = package.MultiVectorEncoder(str(backbone), device="cpu", config_kwargs=dict(config or {}))
    if not projected:
        modules = [module for module in model.children() if not isinstance(module, dense)]
        model = package.MultiVectorEncoder(modules=modules, device="cpu")
    model.max_seq_length = TOKENS
    return model


class PyLate:
    """PyLate's `ColBERT`; contexts are not padded with mask tokens (its "query expansion", for short questions)."""

    def __init__(self, backbone: str | Path, *, config: Mapping[str, Any] | None = None) -> None:
        models, self._scores = import_peer("pylate.models"), import_peer("pylate.scores")
        lengths = {"query_length": TOKENS, "document_length": CANDIDATE_TOKENS, "do_query_expansion": False}
        self.model = models.ColBERT(str(backbone), device="cpu", config_kwargs=dict(config or {}), **lengths)

    def encode_query(self, texts: Sequence[str], *, show_progress_bar: bool) -> list[Tensor]:
        """Encodes contexts: for each, vectors of length 1, [its tokens, 128]."""
        return self._encode(texts, is_query=True, show_progress_bar=show_progress_bar)

    def encode_document(self, texts: Sequence[str], *, show_progress_bar: bool) -> list[Tensor]:
        """Encodes candidates as `encode_query` does contexts; their punctuation has no vectors."""
        return self._encode(texts, is_query=False, show_progress_bar=show_progress_bar)

    def _encode(self, texts: Sequence[str], **how: bool) -> list[Tensor]:
        return [torch.as_tensor(tokens) for tokens in self.model.encode(list(texts), **how)]

    def similarity(self, contexts: Sequence[Tensor], candidates: Sequence[Tensor]) -> Tensor:
        """Scores candidates by MaxSim: [contexts, candidates]; contexts of one length."""
        mask = pad_sequence([torch.ones(len(tokens)) for tokens in candidates], batch_first=True)
        padded = pad_sequence(list(candidates), batch_first=True)
        return cast("Tensor", self._scores.colbert_scores(torch.stack([*contexts]), padded, documents_mask=mask))


PEERS: Mapping[str, Mapping[str, Callable[[Path], Any]]] = {
    "sentence-transformers": {
        "MultiVectorEncoder": functools.partial(load_multi_vector_encoder, projected=False),
        "MultiVectorEncoder-128": functools.partial(load_multi_vector_encoder, projected=True),
    },
    "pylate": {"PyLate": PyLate},
}
"""Peers that are measured beside ours, by name: each is built from the folder of an encoder."""

Times = dict[tuple[str, str], float]
"""Milliseconds of a system in a case."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--backbone", type=Path, help="folder of the encoder (default: MiniLM)")
    parser.add_argument("--datapath", type=Path, help="ParlAI's data folder, for real texts")
    parser.add_argument(
        "--peer", choices=PEERS, default="sentence-transformers", help="pylate: in an environment with it"
    )
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    counts, repeats = (COUNTS[:1], 2) if flags.quick else (COUNTS, 5)
    n_texts = WARM_UP + repeats * sum(counts)
    contexts, texts = read_contexts(flags.datapath, repeats), read_candidates(flags.datapath, n_texts)
    backbone = flags.backbone or find_minilm_folder()
    late = Ranker.from_backbone(backbone, "late", device="cpu", text={"text_truncate": TOKENS})
    with torch.no_grad():
        late.model.get_parameter("term_weights").fill_(1e-3)
    peers = {name: make(backbone) for name, make in PEERS[flags.peer].items()}
    rows = [
        *_measure_times(late, peers, contexts, texts, counts=counts),
        *_measure_bytes(late, peers, texts[-max(counts) :]),
    ]
    times = {(row["system"], row["candidates"], name): row[name] for row in rows for name in row}
    summary = {
        f"ours / {theirs}, {n}, {case}": times[OURS, n, case] / times[theirs, n, case]
        for n, case, theirs in itertools.product(counts, ("unseen_ms", "kept_ms"), peers)
    }
    settings = {"repeats": repeats, "candidates": list(counts), "tokens": TOKENS}
    report = {"benchmark": "ranking_peer", "settings": settings, "rows": rows, "summary": summary}
    print_report(report, as_json=flags.json)


def _measure_times(
    late: Ranker, peers: Mapping[str, Any], contexts: list[list[str]], texts: list[str], *, counts: Sequence[int]
) -> list[dict[str, Any]]:
    """A row for each system and number of candidates."""
    unseen = iter(texts)
    _measure(late, peers, list(itertools.islice(unseen, WARM_UP)), contexts[0])
    rows = []
    for n in counts:
        measured = [_measure(late, peers, list(itertools.islice(unseen, n)), turns) for turns in contexts]
        for system in (OURS, *peers):
            cases = [case for name, case in measured[0] if name == system]
            medians = {case: statistics.median(times[system, case] for times in measured) for case in cases}
            rows.append({"system": system, "candidates": n, **medians})
    return rows


def _measure(late: Ranker, peers: Mapping[str, Any], candidates: list[str], turns: list[str]) -> Times:
    """Milliseconds of each system in each case, for one list."""
    encoded = {name: peer.encode_document(candidates, show_progress_bar=False) for name, peer in peers.items()}

    def rank_ours() -> object:
        return late.rank(turns, candidates, top_k=TOP_K)

    def build_theirs(name: str, tokens: list[Tensor] | None) -> Callable[[], object]:
        return lambda: _select_best(peers[name], turns, candidates, tokens)

    times = {(OURS, "unseen_ms"): measure_processor_ms(rank_ours)}
    times |= {(name, "unseen_ms"): measure_processor_ms(build_theirs(name, None)) for name in peers}
    times[OURS, "kept_ms"] = measure_processor_ms(rank_ours)
    times |= {(name, "kept_ms"): measure_processor_ms(build_theirs(name, encoded[name])) for name in peers}
    with tempfile.TemporaryDirectory() as folder, late.index(candidates, folder, store_tokens="int8") as index:
        stored = Searcher(late, index, top_k=TOP_K, rerank_k=len(candidates), keep_turns=True)
        times[OURS, "stored_ms"] = measure_processor_ms(lambda: stored([turns]))
    return times


@torch.inference_mode()
def _select_best(peer: Any, turns: list[str], candidates: list[str], tokens: list[Tensor] | None) -> list[str]:
    """The ten best by their MaxSim; `tokens` are the candidates', None to encode them now."""
    context = peer.encode_query(["\n".join(turns)], show_progress_bar=False)
    if tokens is None:
        tokens = peer.encode_document(candidates, show_progress_bar=False)
    scores = peer.similarity(context, tokens)[0]
    return [candidates[row] for row in scores.topk(min(TOP_K, len(candidates))).indices.tolist()]


def _measure_bytes(late: Ranker, peers: Mapping[str, Any], texts: list[str]) -> list[dict[str, Any]]:
    """A row for each system: bytes of a candidate."""
    ours: dict[str, float] = {}
    for dtype in ("int8", "float16"):
        with tempfile.TemporaryDirectory() as folder:
            late.index(texts, folder, store_tokens=dtype).close()
            ours[f"{dtype}_bytes"] = sum(path.stat().st_size for path in Path(folder).glob("*.npy")) / len(texts)
    rows: list[dict[str, Any]] = [{"system": OURS, "candidates": len(texts), **ours}]
    for name, peer in peers.items():
        numbers = sum(tokens.numel() for tokens in peer.encode_document(texts, show_progress_bar=False)) / len(texts)
        sizes = {"float32_bytes": 4 * numbers, "float16_bytes": 2 * numbers}
        rows.append({"system": name, "candidates": len(texts), **sizes})
    return rows


if __name__ == "__main__":
    main()
