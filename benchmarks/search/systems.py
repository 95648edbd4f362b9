"""Systems of the benchmark `answering`: our rankers, ParlAI's agent, and its formula in plain torch.

All have the same transformer and the same vectors of candidates. The clock of `build_ours` waits for the device;
ParlAI's agent is the whole agent, from the text of a message to its reply.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.agents import build_options, build_size_flags
from benchmarks.common import build_bert_config, get_time, get_two_towers
from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.encoding.encode import encode_token_ids
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.build import build_model
from polyencoder.ranker import Ranker
from polyencoder.scoring import ContextEncoding, score, select_best
from polyencoder.text.encoder import TextEncoder
from polyencoder.text.vocabulary import train_tokenizer

BERT_BASE = {"layers": 12, "dim": 768, "heads": 12}
CODES = 64
OURS = f"poly-{CODES}"
PARLAI = f"ParlAI's poly-{CODES}"
FORMULA = f"ParlAI's formula, poly-{CODES}"

Answer = Callable[[list[str]], tuple[str, float]]
"""From a context's turns to the reply and the seconds that its encoding took."""


def build_same_model(
    datapath: Path, texts: Sequence[str], folder: Path, size_of: Mapping[str, int], *, device: str
) -> tuple[Any, Ranker]:
    """ParlAI's agent, with a few candidates, and our ranker of the file that it saves."""
    from parlai.core.agents import create_agent

    file = folder / "candidates.txt"
    file.write_text("\n".join(texts[:2]), encoding="utf-8")
    opt = build_options(
        folder=folder / "parlai",
        training=False,
        model="transformer/polyencoder",
        model_file=str(folder / "model"),
        datapath=str(datapath),
        eval_candidates="fixed",
        fixed_candidates_path=str(file),
        encode_candidate_vecs=True,
        no_cuda=device == "cpu",
        **build_size_flags(**size_of, codes=CODES),
    )
    agent = create_agent(opt)
    agent.save(str(folder / "model"))
    return agent, Ranker.from_pretrained(folder / "model", device=device)


def make_ranker(
    texts: Sequence[str],
    size_of: Mapping[str, int],
    *,
    device: str,
    architecture: Architecture = "poly",
    vocabulary_size: int = 30_000,
    dropout: float = 0.0,
    text_truncate: int = 360,
    **options: Any,
) -> Ranker:
    """A ranker of this size with random weights, and a vocabulary trained on these texts."""
    tokenizer = train_tokenizer(texts, vocabulary_size=vocabulary_size)
    backbone = build_bert_config(size_of, vocabulary_size=tokenizer.get_vocab_size(), dropout=dropout)
    text = TextConfig(text_truncate=text_truncate, label_truncate=72)
    config = RankerConfig(architecture=architecture, backbone=backbone, text=text, **options)
    return Ranker(build_model(config), TextEncoder(tokenizer, text), device=device)


def build_ours(ranker: Ranker, vectors: Tensor, candidates: Sequence[str]) -> dict[str, Answer]:
    """Bi- and poly-encoders around one tower, with learned codes and with the first m outputs, in fp32 and bf16.

    And ParlAI's way of scoring around the same tower.
    """
    kinds: dict[str, dict[str, Any]] = {
        "bi-encoder": {"architecture": "bi"},
        "poly-16": {"n_codes": 16},
        OURS: {},
        "poly-360": {"n_codes": 360},
        **{f"first-{m}": {"n_codes": m, "context_vectors": "n_first"} for m in (16, CODES, 360)},
    }
    rounded, low = _copy_rounded(ranker), vectors.bfloat16()
    return {
        **{name: _build_answer(_build_around(ranker, **kind), vectors, candidates) for name, kind in kinds.items()},
        **{
            f"{name}, bf16": _build_answer(_build_around(rounded, **kinds[name]), low, candidates)
            for name in ("bi-encoder", OURS, f"first-{CODES}", "poly-360")
        },
        FORMULA: _build_answer(ranker, vectors, candidates, order=score_by_formula),
        f"{FORMULA}, bf16": _build_answer(rounded, low, candidates, order=score_by_formula),
    }


def build_agent(theirs: Any, vectors: Tensor, candidates: Sequence[str]) -> Answer:
    """ParlAI's agent with these candidates as if it had encoded them."""
    theirs.fixed_candidates = candidates
    theirs.num_fixed_candidates = len(candidates)
    theirs.fixed_candidate_vecs = torch.zeros(len(candidates), 1, dtype=torch.long, device=vectors.device)
    theirs.fixed_candidate_encs = vectors.unsqueeze(0)
    encode = type(theirs).get_ctxt_rep
    seconds = 0.0

    def measure(batch: Any) -> Any:
        nonlocal seconds
        start = get_time()
        encoded = encode(theirs, batch)
        seconds = get_time() - start
        return encoded

    theirs.get_ctxt_rep = measure

    def answer(turns: list[str]) -> tuple[str, float]:
        theirs.reset()
        theirs.observe({"id": "user", "text": "\n".join(turns), "episode_done": True})
        return theirs.act()["text"], seconds

    return answer


def build_cross(ranker: Ranker, candidates: Sequence[str], *, bf16: bool) -> Answer:
    """A cross-encoder with our tower, which reads the context with each candidate."""
    model = get_two_towers(_copy_rounded(ranker) if bf16 else ranker)
    text = replace(model.config.text, text_truncate=360, label_truncate=72)
    config = replace(model.config, architecture="cross", text=text)
    built = build_model(config, model.context_tower)
    crossed = Ranker(built.bfloat16() if bf16 else built, ranker.text, device=ranker.device)

    def answer(turns: list[str]) -> tuple[str, float]:
        return crossed.rank(turns, candidates, top_k=1)[0].text, 0.0

    return answer


def score_by_formula(context: ContextEncoding, vectors: Tensor) -> Tensor:
    """ParlAI's way: a vector of the context for each candidate, [1, n, dim], their product, and a sort of all scores.

    Step by step as its `PolyBasicAttention` and `eval_step` have it, without the lists of Python that these make. Gives
    the candidates' rows [1, n], best first.
    """
    queries = vectors.unsqueeze(0)  # [1, n, dim]
    logits = queries.bmm(context.vectors.transpose(1, 2))  # [1, n, codes]
    nothing = torch.zeros(1, 1, context.n_codes, dtype=torch.bool, device=vectors.device)
    logits.masked_fill_(nothing.repeat(1, len(vectors), 1), torch.finfo(logits.dtype).min)
    weights = logits.softmax(dim=2, dtype=torch.float32).type_as(logits)
    scores = (weights.bmm(context.vectors) * queries).sum(2)
    return scores.sort(1, descending=True).indices


def _build_around(ranker: Ranker, **changes: Any) -> Ranker:
    """Another kind of ranker with the same tower, in its dtype; without changes the ranker itself."""
    if not changes:
        return ranker
    model = get_two_towers(ranker)
    tower: Backbone = model.context_tower
    built = build_model(replace(model.config, share_encoders=True, **changes), tower)
    return Ranker(built.to(next(tower.parameters()).dtype), ranker.text, device=ranker.device)


def _copy_rounded(ranker: Ranker) -> Ranker:
    copied = Ranker(copy.deepcopy(get_two_towers(ranker)), ranker.text, device=ranker.device)
    copied.model.bfloat16()
    return copied


def _score_by_logits(context: ContextEncoding, vectors: Tensor) -> Tensor:
    """Our way: scores from logits alone."""
    return select_best(score(context, vectors), 1)[1]


def _build_answer(
    ranker: Ranker,
    vectors: Tensor,
    candidates: Sequence[str],
    *,
    order: Callable[[ContextEncoding, Tensor], Tensor] = _score_by_logits,
) -> Answer:

    @torch.inference_mode()
    def answer(turns: list[str]) -> tuple[str, float]:
        start = get_time()
        context = encode_token_ids(ranker.model, ranker.text, [ranker.text.tokenize_context(turns)])
        encoded = get_time() - start
        return candidates[int(order(context, vectors)[0, 0])], encoded

    return answer
