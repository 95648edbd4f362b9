"""The vocabulary of `-m convert`: trained on the task by ParlAI's commands, or named by `--vocabulary`."""

from __future__ import annotations

import json

import pytest
from parlai.scripts.build_dict import BuildDict

from polyencoder import Ranker
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.text.encoder import read_tokenizer
from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords

TINY = {"hidden_size": 8, "intermediate_size": 16, "attention_limits": "2", "head_sizes": "24", "scale_batches": 2}


@pytest.fixture
def pairs(tmp_path):
    """Options of a task of pairs."""
    records = [{"context": f"where is number {n} ?", "response": f"number {n} is here ."} for n in range(8)]
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return {"task": "selection:jsonl", "selection_folder": str(tmp_path), "num_negatives": 3, "loglevel": "error"}


def test_build_dict_learns_what_the_library_does(pairs, tmp_path):
    path = tmp_path / "built.dict"
    BuildDict.main(model="convert", dict_file=str(path), dict_minfreq=3, **pairs)
    texts = [text for n in range(8) for text in (f"where is number {n} ?", f"number {n} is here .")]
    expected = learn_subwords(count_words(texts), SubwordSettings(min_count=3))
    tokenizer = read_tokenizer(tmp_path / "built.tokenizer.json")
    assert tokenizer.subwords == expected.subwords
    lines = [line.rpartition("\t")[::2] for line in path.read_text(encoding="utf-8").splitlines()]
    assert [token for token, _ in lines] == [*expected.subwords, "[PAD]", "[EXTRA]"]
    counts = {token: int(count) for token, count in lines}
    assert counts["\ufe4fnumber"] == 16


def test_by_default_it_is_as_near_to_the_papers_size_as_the_task_allows(pairs, tmp_path):
    sizes = []
    for name, options in (("a", {}), ("b", {"dict_maxtokens": 10}), ("c", {"dict_minfreq": 10_000})):
        file = tmp_path / f"{name}.dict"
        if name == "c":
            with pytest.raises(ConfigError, match="no subword occurs 10000 times") as error:
                BuildDict.main(model="convert", dict_file=str(file), **pairs, **options)
            assert error.value.argument == "min_count"
            continue
        BuildDict.main(model="convert", dict_file=str(file), **pairs, **options)
        sizes.append(len(read_tokenizer(tmp_path / f"{name}.tokenizer.json").subwords))
    assert sizes[0] > 12 > sizes[1]


@pytest.mark.slow
def test_a_run_without_a_vocabulary_learns_one_and_goes_on_with_it(pairs, learn, tmp_path):
    path = tmp_path / "model"
    short = {"num_epochs": -1, "validation_every_n_epochs": -1, "batchsize": 4}
    learn(path, **pairs, **TINY, **short, max_train_steps=2)
    before = (tmp_path / "model.tokenizer.json").read_bytes()
    again = learn(path, **pairs, **short, max_train_steps=3)
    assert again["loss"] > 0
    assert (tmp_path / "model.tokenizer.json").read_bytes() == before
    ranker = Ranker.from_pretrained(path, device="cpu")
    sizes = ranker.model.sizes
    assert (sizes.hidden_size, sizes.attention_limits, sizes.vocab_size) == (8, (2,), len(ranker.text) - 2)
    assert int(ranker.model.scale.batches) == 3
    assert ranker.rank(["where is number 3 ?"], ["number 3 is here .", "no ."], top_k=1)


def test_a_vocabulary_is_used_as_it_is(pairs, vocabulary, make, tmp_path):
    options = {**pairs, **TINY, "vocabulary": str(vocabulary), "max_train_steps": 5}
    agent = make(**options, model_file=str(tmp_path / "new"))
    assert agent.dict.text.tokenizer.to_str() == read_tokenizer(vocabulary / "tokenizer.json").to_str()
    assert (agent.opt["text_truncate"], agent.opt["history_size"], agent.opt["attention_heads"]) == (60, 1, 1)
    assert agent.history.size == 1
    opt = dict(agent.opt)
    agent.family.build_text_config(agent.opt, agent.dict.text.tokenizer, agent.family.trained_fields, is_new=True)
    assert agent.opt == opt
    with pytest.raises(CheckpointError, match="--dict-minfreq 3: the tokenizer is that of --vocabulary"):
        make(**options, dict_minfreq=3)


def test_dictionaries_of_other_agents_are_refused(pairs, dictionary, make, backbone_folder):
    with pytest.raises(ConfigError, match="the tokenizer is not ConveRT's subwords"):
        make(**pairs, dict_file=dictionary, max_train_steps=5)
    with pytest.raises(ConfigError, match="not a vocabulary of ConveRT's subwords; train one with `polyencoder vocab`"):
        make(**pairs, vocabulary=str(backbone_folder("bert")), max_train_steps=5)
