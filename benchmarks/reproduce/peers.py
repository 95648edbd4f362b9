"""Trains other libraries' rankers on ConvAI2, as ours: backbone, data, updates.

    python -m benchmarks.reproduce.peers bi --backbone FOLDER --datapath DATA --examples 20000 --out FOLDER

prints one JSON object with R@1 and MRR on the validation set. Trainers and losses are sentence-transformers', with
their defaults: `MultipleNegativesRankingLoss` with the other labels of a batch, for a late-interaction encoder
(`MultiVectorEncoder`) by its MaxSim; for a cross-encoder `BinaryCrossEntropyLoss` with sampled negatives. `pylate`
is PyLate's late-interaction encoder with its `CachedContrastive`, in an environment with it (`pip install
pylate==1.6.0`; it needs older versions). As ours, these three are trained without dropout, and each update has whole
examples. After a kill the same command resumes from the last checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, SequentialSampler

from benchmarks.agents import CONVAI2, open_teacher
from benchmarks.common import import_peer
from benchmarks.ranking_peer import TOKENS, PyLate, load_multi_vector_encoder
from polyencoder.evaluation.metrics import Tally, of_example, ranks

SCALE = 20.0  # of cosines, its default
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CACHED = 2
"""Texts with activations in memory at once when a late-interaction encoder is trained; no result depends on it."""
ENCODED = 512
"""Contexts whose token vectors are in memory at once."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=MAKERS)
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--datapath", required=True)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=64, help="examples per update")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--num-negatives", type=int, default=9, help="negatives of an example, for a cross-encoder")
    parser.add_argument("--no-projection", action="store_true", help="compare tokens by the encoder's own outputs")
    parser.add_argument("--bf16", action="store_true", help="train under autocast to bfloat16 (late: evaluate, too)")
    parser.add_argument("--evaluated", type=int, help="evaluate only this many examples")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder of checkpoints")
    flags = parser.parse_args(arguments)
    with contextlib.redirect_stdout(sys.stderr):  # where its trainer reports
        report = _run(flags)
    print(json.dumps(report))


def _run(flags: argparse.Namespace) -> dict[str, float]:
    """Train, or resume, and evaluate."""
    torch.manual_seed(flags.seed)
    examples = list(islice(_read_examples(flags.datapath, "train", seed=flags.seed), flags.examples))
    updates = math.ceil(len(examples) / flags.batch_size)
    peer = MAKERS[flags.kind](flags, examples)
    args = peer.arguments(
        output_dir=str(flags.out),
        max_steps=updates,
        learning_rate=flags.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=math.ceil(updates / 10),
        weight_decay=0.01,
        seed=flags.seed,
        save_steps=25,
        save_total_limit=1,
        use_cpu=not torch.cuda.is_available(),  # or bf16 is refused
        bf16=flags.bf16,
        report_to=[],
        disable_tqdm=True,
        **{"per_device_train_batch_size": flags.batch_size, **peer.settings},
    )
    rows = import_peer("datasets").Dataset.from_list(peer.rows)
    trainer = peer.trainer(model=peer.model, args=args, train_dataset=rows, loss=peer.loss, data_collator=peer.collator)
    trainer.train(resume_from_checkpoint=find_last_checkpoint(flags.out))
    tally = Tally()
    peer.model.eval()
    evaluated = list(islice(_read_examples(flags.datapath, "valid", seed=0), flags.evaluated))
    for (_, label, candidates), predicted in zip(evaluated, peer.score(evaluated), strict=True):
        scores, right = predicted.float().cpu()[None], torch.tensor([candidates.index(label)])
        loss = float(torch.nn.functional.cross_entropy(scores, right))
        tally.add([of_example(int(ranks(scores, right)), loss, len(candidates))])
    return {"updates": updates, "examples": updates * flags.batch_size, **tally.report()}


def find_last_checkpoint(folder: Path) -> str | None:
    """The newest complete checkpoint; a kill while saving leaves an incomplete one.

    transformers' trainer writes `trainer_state.json` last.
    """
    whole = [state.parent for state in folder.glob("checkpoint-*/trainer_state.json")]
    return str(max(whole, key=lambda path: int(path.name.split("-")[1]))) if whole else None


Example = tuple[str, str, list[str]]
"""A context as one text, its label, and in validation its candidates."""
Score = Callable[[Sequence[Example]], Iterable[torch.Tensor]]
"""Scores each example's candidates."""


class Peer(NamedTuple):
    """A model of sentence-transformers with what trains it, and a function that scores."""

    model: Any
    loss: Any
    rows: list[dict[str, Any]]
    score: Score
    trainer: Any
    arguments: Any
    """The classes of the trainer and of its arguments."""
    settings: Mapping[str, Any] = {}
    """Further arguments of this peer."""
    collator: Any = None


def _build_bi(flags: argparse.Namespace, examples: Sequence[Example]) -> Peer:
    package = import_peer("sentence_transformers")
    losses = import_peer("sentence_transformers.sentence_transformer.losses")
    model = package.SentenceTransformer(flags.backbone)
    model.max_seq_length = TOKENS
    vectors: dict[str, torch.Tensor] = {}  # of candidates, which recur, and would be padded to the context beside it

    def score(evaluated: Sequence[Example]) -> Iterator[torch.Tensor]:
        for text, _, candidates in evaluated:
            new = [candidate for candidate in candidates if candidate not in vectors]
            if new:
                encoded = model.encode(new, show_progress_bar=False, convert_to_tensor=True)
                vectors.update(zip(new, encoded, strict=True))
            context = model.encode([text], show_progress_bar=False, convert_to_tensor=True)
            yield package.util.cos_sim(context, torch.stack([vectors[candidate] for candidate in candidates]))[0]

    rows = [{"anchor": text, "positive": label} for text, label, _ in examples]
    loss = losses.MultipleNegativesRankingLoss(model, scale=SCALE)
    trainer, arguments = package.SentenceTransformerTrainer, package.SentenceTransformerTrainingArguments
    return Peer(model, loss, rows, score, trainer, arguments)


def _build_late(flags: argparse.Namespace, examples: Sequence[Example]) -> Peer:
    """A ColBERT. It has a new projection of tokens to 128 dimensions, unless `--no-projection`."""
    package = import_peer("sentence_transformers.multi_vector_encoder")
    losses = import_peer("sentence_transformers.multi_vector_encoder.losses")
    model = load_multi_vector_encoder(flags.backbone, projected=not flags.no_projection, config=NO_DROPOUT)
    rows = [{"query": text, "positive": label} for text, label, _ in examples]
    loss = losses.CachedMultiVectorMultipleNegativesRankingLoss(model, mini_batch_size=CACHED)
    trainer, arguments = package.MultiVectorEncoderTrainer, package.MultiVectorEncoderTrainingArguments
    return Peer(model, loss, rows, _build_token_score(model, bf16=flags.bf16), trainer, arguments)


def _build_pylate(flags: argparse.Namespace, examples: Sequence[Example]) -> Peer:
    """PyLate's ColBERT. It has a new projection of tokens to 128 dimensions."""
    package = import_peer("sentence_transformers")
    losses, utils = import_peer("pylate.losses"), import_peer("pylate.utils")
    encoder = PyLate(flags.backbone, config=NO_DROPOUT)
    rows = [{"query": text, "positive": label} for text, label, _ in examples]
    loss = losses.CachedContrastive(encoder.model, mini_batch_size=CACHED)
    score, collator = _build_token_score(encoder, bf16=flags.bf16), utils.ColBERTCollator(encoder.model.tokenize)
    trainer, arguments = package.SentenceTransformerTrainer, package.SentenceTransformerTrainingArguments
    return Peer(encoder.model, loss, rows, score, trainer, arguments, collator=collator)


def _build_token_score(encoder: Any, *, bf16: bool) -> Score:
    """Scores candidates by token vectors; each text is encoded once."""
    low = torch.autocast("cuda" if torch.cuda.is_available() else "cpu", dtype=torch.bfloat16, enabled=bf16)

    def score(evaluated: Sequence[Example]) -> Iterator[torch.Tensor]:
        texts = list(dict.fromkeys(candidate for _, _, candidates in evaluated for candidate in candidates))
        with low:
            tokens = dict(zip(texts, encoder.encode_document(texts, show_progress_bar=True), strict=True))
        for start in range(0, len(evaluated), ENCODED):  # contexts of about the same length are encoded together
            batch = evaluated[start : start + ENCODED]
            with low:
                contexts = encoder.encode_query([text for text, _, _ in batch], show_progress_bar=False)
            for context, (_, _, candidates) in zip(contexts, batch, strict=True):
                yield encoder.similarity([context.float()], [tokens[candidate].float() for candidate in candidates])[0]

    return score


def _build_cross(flags: argparse.Namespace, examples: Sequence[Example]) -> Peer:
    package = import_peer("sentence_transformers.cross_encoder")
    losses = import_peer("sentence_transformers.cross_encoder.losses")
    model = package.CrossEncoder(flags.backbone, num_labels=1, max_length=TOKENS, config_kwargs=NO_DROPOUT)
    labels = sorted({label for _, label, _ in examples})
    draw = random.Random(flags.seed)
    rows = []
    for text, label, _ in examples:
        wrong = draw.sample(
            [other for other in draw.sample(labels, min(len(labels), 2 * flags.num_negatives)) if other != label],
            flags.num_negatives,
        )
        rows += [{"query": text, "reply": reply, "label": float(reply == label)} for reply in (label, *wrong)]

    def score(evaluated: Sequence[Example]) -> Sequence[torch.Tensor]:
        pairs = [(text, candidate) for text, _, candidates in evaluated for candidate in candidates]
        scores = torch.as_tensor(model.predict(pairs, device=_list_processes(), show_progress_bar=True))
        return scores.split([len(candidates) for _, _, candidates in evaluated])

    settings = {  # one example a pass, so that its pairs are about equally long
        "per_device_train_batch_size": flags.num_negatives + 1,
        "gradient_accumulation_steps": flags.batch_size,
        "batch_sampler": _build_ordered_sampler,
    }
    loss = losses.BinaryCrossEntropyLoss(model)
    trainer, arguments = package.CrossEncoderTrainer, package.CrossEncoderTrainingArguments
    return Peer(model, loss, rows, score, trainer, arguments, settings)


MAKERS: Mapping[str, Callable[[argparse.Namespace, Sequence[Example]], Peer]] = {
    "bi": _build_bi,
    "late": _build_late,
    "pylate": _build_pylate,
    "cross": _build_cross,
}


def _list_processes() -> list[str] | None:
    """Devices for a pool of one process per thread, which is faster than threads; None for no pool."""
    threads = torch.get_num_threads()
    if torch.cuda.is_available() or threads == 1:
        return None
    os.environ["OMP_NUM_THREADS"] = "1"  # inherited by the pool's processes
    return ["cpu"] * threads


def _build_ordered_sampler(dataset: Any, batch_size: int, drop_last: bool, **_: Any) -> BatchSampler:
    """A sampler that keeps the order of rows, which are already shuffled by whole examples."""
    return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def _read_examples(datapath: str, datatype: str, *, seed: int) -> Iterator[Example]:
    teacher = open_teacher(CONVAI2, datatype=datatype, datapath=datapath, teacher_seed=seed)
    for _ in range(teacher.num_examples()):
        message = teacher.act()
        label = (message.get("labels") or message.get("eval_labels"))[0]
        yield message["text"], label, list(message.get("label_candidates") or [])


if __name__ == "__main__":
    main()
