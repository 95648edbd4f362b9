"""What the documents name and do not make, in small: files, a data folder, encoders, models.

They stand in a user's folder under the very names of the documents, so commands need not be changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from parlai.tasks.selection.sample import sample_dialogues
from tokenizers.implementations import BertWordPieceTokenizer
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast

from tests.task_files import make_datapath, write, write_csv

ROOT = Path(__file__).parents[2]

# What `$DATA` is in a shell, unless the document sets it.
VARIABLES = {"DATA": "DATA", "BACKBONE": "BACKBONE"}

# Made by commands, in this order. The first model knows its answers, so that it can be calibrated.
_TINY = (
    "--embedding-size 32 --ffn-size 64 --n-layers 1 --n-heads 2 --dropout 0 --attention-dropout 0 --reduction-type mean"
)
_QUICKLY = (
    "--seed 0 --learningrate 1e-2 --warmup-updates 5 --batchsize 16 --max-train-steps 50 --validation-every-n-epochs -1"
)
MODELS = {
    "MODEL_FILE": "parlai train_model -m polyencoder -t selection:jsonl --selection-folder easy --poly-n-codes 4 "
    f"{_TINY} {_QUICKLY} -mf MODEL_FILE",
    "MODEL": "polyencoder export MODEL_FILE MODEL",
    "CROSS_MODEL": "parlai train_model -m crossencoder -t selection:jsonl --selection-folder easy --candidates inline "
    f"{_TINY} --batchsize 4 --max-train-steps 4 -mf CROSS_MODEL",
    "PARLAI_FILE": "parlai train_model -m transformer/polyencoder -t selection:jsonl --selection-folder easy "
    "--variant xlm --activation gelu --embedding-size 32 --ffn-size 64 --n-layers 1 --n-heads 2 --candidates inline "
    "--batchsize 4 --max-train-steps 4 --lr-scheduler none -mf PARLAI_FILE",
    "replies": "polyencoder index --model MODEL --candidates replies.jsonl --out replies --faiss auto",
    "runs/pairs": "polyencoder train --backbone BACKBONE --architecture poly --train my/train.jsonl "
    "--valid my/valid.jsonl --max-updates 2 --out runs/pairs",
}

_THINGS = [
    "cat",
    "dog",
    "cow",
    "hen",
    "pig",
    "bee",
    "owl",
    "fox",
    "key",
    "hat",
    "pen",
    "cup",
    "bag",
    "box",
    "map",
    "bus",
]
_EASY_LABELS = [f"my {thing} is here ." for thing in _THINGS]


def _easy_pairs(path: Path) -> None:
    """JSON lines that can be learned in seconds: the answer has a word of the question."""
    questions = ["where is the {} ?", "tell me , is the {} with you ?"]
    pairs = [
        (question.format(thing), label)
        for thing, label in zip(_THINGS, _EASY_LABELS, strict=True)
        for question in questions
    ]
    write(path, ({"context": [question], "response": label, "candidates": _EASY_LABELS} for question, label in pairs))


def _easy_folder(path: Path) -> None:
    for split in ("train", "valid", "test"):
        _easy_pairs(path / f"{split}.jsonl")


def _pairs(path: Path, split: str, *, with_candidates: bool) -> None:
    """JSON lines of contexts and responses."""
    records = []
    for context, label, candidates in islice(_turns(split), 60 if split == "train" else 30):
        more = {"candidates": candidates} if with_candidates else {}
        records.append({"context": context, "response": label, **more})
    write(path, records)


def _turns(split: str) -> Iterator[tuple[list[str], str, list[str]]]:
    """(context, label, candidates) of the sample task."""
    for dialogue in sample_dialogues(split):
        context = [f"your persona: {fact}" for fact in dialogue.persona]
        for turn in dialogue.turns:
            context = [*context, turn.text]
            yield context, turn.label.text, [candidate.text for candidate in turn.candidates]
            context = [*context, turn.label.text]


def _folder_of_graded(path: Path) -> None:
    """JSON lines of candidates with labels: the reply, another one half as good, and wrong ones."""
    for split in ("train", "valid", "test"):
        records = []
        for context, label, candidates in islice(_turns(split), 40 if split == "train" else 20):
            others = [text for text in candidates if text != label]
            labels = [1, *(0.5 if n == 0 else 0 for n in range(len(others)))]
            records.append({"context": context, "candidates": [label, *others], "labels": labels})
        write(path / f"{split}.jsonl", records)


def _folder_of_pairs(path: Path, *, with_candidates: bool) -> None:
    for split in ("train", "valid", "test"):
        _pairs(path / f"{split}.jsonl", split, with_candidates=with_candidates)


def _dialogues(split: str, path: Path) -> None:
    """ParlAI's JSON lines."""
    records = []
    for dialogue in islice(sample_dialogues(split), 40):
        messages = [{"id": speaker, "text": text} for turn in dialogue.turns for speaker, text in _speakers(turn)]
        records.append({"dialog": [messages]})
    write(path, records)


def _speakers(turn: Any) -> list[tuple[str, str]]:
    return [("user", turn.text), ("us", turn.label.text)]


def _replies(path: Path) -> None:
    texts = sorted({label for _, label, _ in islice(_turns("train"), 120)}) + _EASY_LABELS
    if path.suffix == ".txt":
        write(path, "".join(f"{text}\n" for text in texts))
    else:
        write(path, [{"id": f"r{n}", "text": text, "lang": "en", "document": n // 5} for n, text in enumerate(texts)])


def _ids(path: Path) -> None:
    write(path, "r6\nr7\n")


def _changed_replies(path: Path) -> None:
    write(path, [{"id": "r8", "text": "my fox is asleep ."}])


def _more_replies(path: Path) -> None:
    write(path, [{"id": f"more{n}", "text": f"my {animal} is asleep ."} for n, animal in enumerate(["owl", "hen"])])


def _table(path: Path) -> None:
    rows = [[context[-1], label, "|".join(candidates)] for context, label, candidates in islice(_turns("valid"), 30)]
    write_csv(path, ["question", "answer", "options"], rows)


def _questions(path: Path) -> None:
    """Pairs to train on and to calibrate with: an encoder of random weights finds an answer of as many tokens."""
    frames = ["the {} is here .", "a {} is here .", "your {} is here .", "my {} is here ?", "my {} is here !"]
    frames += ["my {} is there .", "where is it ?"]  # the last one has no right answer
    rows = [[frame.format(thing), f"my {thing} is here ."] for thing in _THINGS for frame in frames]
    write_csv(path, ["question", "answer"], rows)


def _threads(path: Path) -> None:
    records = ({"context": context[-1], "response": label} for context, label, _ in islice(_turns("test"), 100))
    write(path, records)


def _dump(path: Path) -> None:
    """A dump as WikiExtractor writes it."""
    articles = []
    for number, (context, label, _) in enumerate(islice(_turns("train"), 60)):
        text = " ".join(sentence.capitalize() for sentence in (*context, label))
        articles.append(f'<doc id="{number}" url="" title="{label}">\n{label}\n\n{text}\n</doc>\n')
    write(path / "AA/wiki_00", "".join(articles))


def _encoder(path: Path, *, kind: Callable[[BertConfig], Any] = BertModel, **config: Any) -> None:
    """A BERT of two layers with a vocabulary of word pieces, random weights."""
    path.mkdir(parents=True)
    pieces = BertWordPieceTokenizer()
    texts = [text for context, label, _ in islice(_turns("train"), 400) for text in (context[-1], label)]
    pieces.train_from_iterator(texts, vocab_size=400, show_progress=False)
    pieces.save_model(str(path))
    BertTokenizerFast(vocab=str(path / "vocab.txt")).save_pretrained(path)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"vocab_size": pieces.get_vocab_size(), "initializer_range": 0.5}  # large: texts differ
    kind(BertConfig(**sizes, **config)).save_pretrained(path)


def _sentence_encoder(path: Path) -> None:
    """The same with the files by which sentence-transformers knows its own."""
    _encoder(path)
    kinds = {"0": ("", "Transformer"), "1": ("1_Pooling", "Pooling"), "2": ("2_Normalize", "Normalize")}
    modules = [
        {"idx": int(n), "name": n, "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for n, (folder, kind) in kinds.items()
    ]
    (path / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (path / "1_Pooling/config.json").write_text(json.dumps(pooling), encoding="utf-8")


def _beir(path: Path) -> None:
    """A folder in BEIR's layout: which reply answers a turn."""
    turns = [(context[-1], label) for context, label, _ in islice(_turns("valid"), 20)]
    write(path / "corpus.jsonl", [{"_id": f"d{n}", "title": "", "text": label} for n, (_, label) in enumerate(turns)])
    write(path / "queries.jsonl", [{"_id": f"q{n}", "text": turn} for n, (turn, _) in enumerate(turns)])
    judged = "".join(f"q{n}\td{n}\t1\n" for n in range(len(turns)))
    for split in ("train", "dev", "test"):
        write(path / f"qrels/{split}.tsv", f"query-id\tcorpus-id\tscore\n{judged}")


def _settings(path: Path) -> None:
    """The file of settings as the documents show it."""
    block = re.search(r"```yaml\n(.+?)```", (ROOT / "docs" / "training.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    write(path, block[1])


# Name in the documents -> what makes it.
FILES: dict[str, Callable[[Path], object]] = {
    "BACKBONE": _encoder,
    "cross-encoder/ms-marco-MiniLM-L6-v2": partial(_encoder, kind=BertForSequenceClassification, num_labels=1),
    "DATA": make_datapath,
    "EXTRACTED": _dump,
    "sentence-transformers/all-MiniLM-L6-v2": _sentence_encoder,
    "my": partial(_folder_of_pairs, with_candidates=True),
    "my_graded": _folder_of_graded,
    "my_pairs": partial(_folder_of_pairs, with_candidates=False),
    **{f"my_{split}.jsonl": partial(_dialogues, split) for split in ("train", "valid", "test")},
    "beir": _beir,
    "pairs.csv": _table,
    "faq.csv": _questions,
    "replies.txt": _replies,
    "replies.jsonl": _replies,
    "more.jsonl": _more_replies,
    "changed.jsonl": _changed_replies,
    "ids.txt": _ids,
    "run.yaml": _settings,
    "easy": _easy_folder,  # what MODELS learn
    "valid.jsonl": _easy_pairs,
    "examples.jsonl": _easy_pairs,
    "reddit/test-00000-of-00001.json.gz": _threads,
}


def make_files(folder: Path) -> None:
    """Everything but the models."""
    for name, make in FILES.items():
        make(folder / name)


def models_in(text: str) -> list[str]:
    """The models that a text names and does not make, and those that they are made of, in an order to make them in."""
    named = {name for name in MODELS if _names(text, name) and f"--out {name} " not in text.replace("\n", " ")}
    for name in reversed(MODELS):  # each is made of those before it
        if name in named:
            named |= {other for other in MODELS if other != name and _names(MODELS[name], other)}
    return [name for name in MODELS if name in named]


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w./]){name}(?![\w./])", text) is not None
