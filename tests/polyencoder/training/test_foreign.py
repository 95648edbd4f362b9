"""Training for an index of vectors whose encoder is not here."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from polyencoder import Ranker
from polyencoder.cli.main import main
from polyencoder.config import RankerConfig
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.index import Candidate, Fingerprints, build_index, open_index
from polyencoder.index.folder.index import FolderIndex
from polyencoder.training import DistillationConfig, TrainSettings, train_ranker
from polyencoder.training.building import build_objective
from polyencoder.training.foreign import ForeignCandidates, find_foreign_candidates
from tests.model_folders import weights_in
from tests.parameters import mostly_long
from tests.polyencoder.training.runs import CONFIG, THINGS
from tests.polyencoder.training.test_frozen_candidates import RESPONSES, digests, with_frozen_candidates

pytestmark = pytest.mark.slow

DIM = 7  # no encoder's here
THEIRS = Fingerprints("their-encoder-v2")


def vectors(rows: int) -> np.ndarray:
    drawn = np.random.default_rng(0).standard_normal((rows, DIM)).astype("float32")
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def build_foreign(folder: Path) -> Path:
    """A foreign index with the responses and twenty other texts."""
    texts = [*RESPONSES, *(f"another text {n} ." for n in range(20))]
    records = [Candidate(None, text, vector=vector) for text, vector in zip(texts, vectors(len(texts)), strict=True)]
    build_index(folder, records, THEIRS)
    return folder


@pytest.fixture
def index(tmp_path) -> Path:
    return build_foreign(tmp_path / "index")


@pytest.fixture
def make_settings(tmp_path, index, backbone_folder):
    """(**changes) -> the settings of a run for the index."""

    def make_settings(**changes) -> TrainSettings:
        usual = {"architecture": "bi", "epochs": 40.0, "learning_rate": 0.001, "evaluations": 0.1}
        usual["candidates_of"] = str(index)
        start = {} if "init" in changes else {"backbone": str(backbone_folder("bert")), "reduction": "mean"}
        return with_frozen_candidates(tmp_path, **usual | start | changes)

    return make_settings


@pytest.fixture(scope="module")
def run(tmp_path_factory, backbone_folder) -> Path:
    """The folder of a run of an epoch, which no test changes: its data, the index and `out`."""
    folder = tmp_path_factory.mktemp("run")
    start = {"architecture": "bi", "backbone": str(backbone_folder("bert")), "reduction": "mean", "epochs": 1.0}
    train_ranker(with_frozen_candidates(folder, **start, candidates_of=str(build_foreign(folder / "index"))))
    return folder


@mostly_long("changes", [{"grad_cache": 2}, {"architecture": "poly", "n_codes": 3}], ids=["bi", "poly"], quick=1)
def test_a_context_tower_learns_to_search_vectors_that_exist(make_settings, index, tmp_path, changes):
    before = digests(index)
    report = train_ranker(make_settings(**changes))
    assert report.best > 0
    assert digests(index).items() >= before.items()  # SQLite adds its files of readers
    trained = Ranker.from_pretrained(tmp_path / "out", device="cpu")
    config = trained.model.config
    assert (config.foreign_dim, config.foreign_fingerprint) == (DIM, THEIRS.model)
    assert RankerConfig.from_json(config.to_json(), origin="") == config
    state = weights_in(tmp_path / "out")
    assert state["foreign_map.weight"].shape[0] == DIM
    assert not any(name.startswith("own_candidate") or len(value) == 30 for name, value in state.items())
    contexts = [["hi", f"your {thing} ?"] for thing in THINGS]
    results = trained.search_many(contexts, index, top_k=30)
    encoded = trained.encode_contexts(contexts)
    texts = [*RESPONSES, *(f"another text {n} ." for n in range(20))]
    scores = torch.from_numpy(trained.encoder.score(encoded, vectors(30)))
    for hits, row in zip(results, scores, strict=True):
        assert [hit.score for hit in hits] == pytest.approx(row.sort(descending=True).values.tolist(), rel=1e-4)
        assert hits[0].text == texts[int(row.argmax())]
    right = sum(hits[0].text == reply for hits, reply in zip(results, RESPONSES, strict=True))
    assert right >= 8  # of ten, among thirty
    card = (tmp_path / "out/README.md").read_text()
    assert "| candidates | vectors of another encoder, fingerprint their-encoder-v2 |" in card
    assert "ranker.rank(" not in card
    assert "| candidate |" not in card


def test_the_map_starts_as_the_regression_of_the_vectors(index, make_ranker):
    """Vectors that are linear in the encoder's are found again."""
    ranker = make_ranker("bi")
    foreign = ForeignCandidates(open_index(index))
    texts = open_index(index).texts()
    inputs = np.random.default_rng(1).standard_normal((len(texts), 3)).astype("float32")
    layer = torch.zeros(DIM, 3)
    foreign.fit_map(layer, lambda batch: inputs[[texts.index(text) for text in batch]])
    expected = np.linalg.lstsq(inputs, vectors(len(texts)), rcond=None)[0].T
    np.testing.assert_allclose(layer.numpy(), expected, atol=5e-3)
    foreign.attach(ranker)
    assert ranker.text.rows is not None
    assert ranker.model.foreign_vectors is not None
    np.testing.assert_array_equal(ranker.model.foreign_vectors(torch.tensor([2, 0])), vectors(3)[[2, 0]])


def test_texts_that_differ_in_spaces_have_their_own_vectors(make_ranker, tmp_path):
    """Texts of data have no spaces around them, so texts of the index match without theirs, too."""
    texts = ["hello .", " hello .", "good bye . "]
    records = [Candidate(None, text, vector=vector) for text, vector in zip(texts, vectors(3), strict=True)]
    build_index(tmp_path / "index", records, THEIRS)
    rows = ForeignCandidates(open_index(tmp_path / "index")).attach(make_ranker("bi")).text.rows
    assert rows == {"hello .": 0, " hello .": 1, "good bye .": 2, "good bye . ": 2}


def test_what_the_model_cannot_do(make_settings, run, index, tmp_path):
    trained = Ranker.from_pretrained(run / "out", device="cpu")
    for call in (
        lambda: trained.rank("hi", RESPONSES),
        lambda: trained.index(RESPONSES, tmp_path / "new"),
        lambda: trained.encode_candidates(RESPONSES),
    ):
        with pytest.raises(InputError, match="no encoder of candidates: it searches an index of the vectors that"):
            call()
    records = [Candidate(None, text, vector=vectors(1)[0]) for text in RESPONSES[:1]]
    build_index(tmp_path / "other", records, Fingerprints("their-encoder-v3"))
    with pytest.raises(CheckpointError, match="another model"):
        trained.search("hi", tmp_path / "other")
    with pytest.raises(ConfigError, match="graphs are of both sides"):
        trained.model.export_steps()
    with pytest.raises(ConfigError, match="those of candidates are another encoder's"):
        trained.shortened(3)
    with pytest.raises(ConfigError, match="was trained for vectors of another encoder: give the index folder"):
        train_ranker(make_settings(init=str(run / "out"), candidates_of=None, out=str(tmp_path / "more")))
    more = make_settings(init=str(run / "out"), out=str(tmp_path / "more"), epochs=1.0)
    train_ranker(more)
    again = Ranker.from_pretrained(tmp_path / "more", device="cpu")
    assert again.search("hi", index, top_k=1)[0].text in open_index(index).texts()
    plain = Ranker.from_backbone(run / "out", "bi", device="cpu")  # its encoder, on both sides
    assert plain.model.config.foreign_dim is None
    assert len(plain.rank("hi", RESPONSES)) == len(RESPONSES)


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (["evaluate", "-m", "out", "--num-negatives", "3", "--data"], "with --qrels, --queries and --index"),
        (["calibrate", "-m", "out", "--data"], "calibrate searches of that, with --index"),
        (["mine", "-m", "out", "-o", "mined.jsonl", "--pairs"], "mine in that, with --index"),
    ],
)
def test_commands_that_rank_texts_say_what_to_do_instead(run, monkeypatch, capsys, command, remedy):
    monkeypatch.chdir(run)
    monkeypatch.setattr(sys, "argv", ["polyencoder", *command, "train.jsonl"])
    with pytest.raises(SystemExit):
        main()
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("polyencoder: this model has no encoder of candidates")
    assert remedy in line


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"hard_negatives": 2}, ConfigError, "hard_negatives are not mined among vectors of another encoder"),
        ({"share_encoders": True}, ConfigError, "share_encoders needs an encoder of candidates"),
        ({"architecture": "late"}, ConfigError, "the architecture late needs an encoder of candidates"),
    ],
)
def test_what_cannot_be_trained(make_settings, changes, error, message):
    with pytest.raises(error, match=message):
        train_ranker(make_settings(**changes))


def test_it_is_no_agent_of_parlai(run):
    interactive = pytest.importorskip("parlai.scripts.interactive").Interactive
    with pytest.raises(ConfigError, match="no encoder of candidates, which an agent needs: search its index with"):
        interactive.main(model="biencoder", model_file=str(run / "out"), index=str(run / "index"))


def test_removed_texts_are_no_candidates(make_settings, tmp_path):
    """Their vectors remain until the index is compacted, but no search finds them."""
    both = zip(RESPONSES, vectors(len(RESPONSES)), strict=True)
    records = [Candidate(str(number), text, vector=vector) for number, (text, vector) in enumerate(both)]
    build_index(tmp_path / "less", records, THEIRS)
    less = FolderIndex.open(tmp_path / "less")
    less.remove(["3"])
    assert less.removed_rows() == {3}
    less.close()
    with pytest.raises(InputError, match=f"{RESPONSES[3]!r} is not in the index"):
        train_ranker(make_settings(candidates_of=str(tmp_path / "less")))
    assert not (tmp_path / "out").exists()


def test_a_response_that_is_not_in_the_index_is_named(make_settings, tmp_path):
    settings = make_settings()
    with open(tmp_path / "train.jsonl", "a") as file:
        file.write(json.dumps({"context": "hi", "response": "not there ."}) + "\n")
    with pytest.raises(InputError, match=r"'not there \.' is not in the index, whose texts alone have vectors"):
        train_ranker(settings)


def test_indexes_of_models_are_not_foreign(index, make_ranker, tmp_path, sentences):
    ranker = make_ranker("bi")
    assert find_foreign_candidates(None, ranker) is None
    ranker.index(sentences, tmp_path / "own").close()
    make_ranker("bi", output_scaling=2.0).index(sentences, tmp_path / "others").close()
    for known in ("own", "others"):
        assert find_foreign_candidates(str(tmp_path / known), ranker) is None
    foreign = find_foreign_candidates(str(index), ranker)
    assert foreign is not None
    assert foreign.build_config({"normalize": None, "output_scaling": 3.0})["output_scaling"] == 3.0
    assert foreign.build_config({})["output_scaling"] == pytest.approx(20)


def test_a_model_for_an_index_teaches_none(run, make_ranker):
    config = replace(CONFIG, distillation=DistillationConfig(teacher=str(run / "out")))
    with pytest.raises(ConfigError, match="out: no teacher, as it has no encoder of candidates") as caught:
        build_objective(make_ranker("bi"), config)
    assert caught.value.argument == "teacher"


def test_a_configuration_has_all_of_it_or_nothing():
    with pytest.raises(ConfigError, match="belong together"):
        RankerConfig(architecture="bi", foreign_dim=3)
