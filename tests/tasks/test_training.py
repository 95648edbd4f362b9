"""Our tasks under ParlAI's own loops: workers, processes, dynamic batches, a resumed run, several tasks; and ParlAI's
own tasks under our agents."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from parlai.core.agents import create_agent
from parlai.core.torch_agent import TorchAgent
from parlai.core.worlds import create_task
from parlai.scripts.build_dict import BuildDict
from parlai.scripts.train_model import TrainModel
from parlai.utils import logging

from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

TINY = {"embedding_size": 16, "ffn_size": 32, "n_layers": 1, "n_heads": 2, "poly_n_codes": 2, "n_positions": 64}
TINY |= {"text_truncate": 48, "label_truncate": 16, "dict_maxtokens": 400, "loglevel": "error"}
TINY |= {"model": "polyencoder", "candidates": "batch", "eval_candidates": "inline", "num_negatives": 3}
TINY |= {"learningrate": 1e-3, "batchsize": 4}
TRAINING = TINY | {"validation_cutoff": 2.0}  # a lucky model that has all of the validation right would stop early
EXAMPLES = 24


@pytest.fixture(autouse=True)
def calm():
    logging.logger.setLevel(logging.ERROR)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, write) -> str:
    """A folder of pairs: 24 for training, 4 for validation and test."""
    folder = tmp_path_factory.mktemp("pairs")
    for split, count in {"train": EXAMPLES, "valid": 4, "test": 4}.items():
        write(
            folder / f"{split}.jsonl", ({"context": f"question {n}", "response": f"answer {n}"} for n in range(count))
        )
    return str(folder)


@pytest.fixture(scope="module")
def dictionary(tmp_path_factory, pairs) -> str:
    path = str(tmp_path_factory.mktemp("dictionary") / "pairs.dict")
    BuildDict.main(task="selection:jsonl", selection_folder=pairs, dict_file=path, **TINY)
    return path


@pytest.fixture
def options(pairs, dictionary):
    never = {"validation_every_n_epochs": -1.0}
    return TRAINING | never | {"task": "selection:jsonl", "selection_folder": pairs, "dict_file": dictionary}


@pytest.fixture
def trained_on(monkeypatch) -> list[list[str]]:
    """The texts of each batch that an agent is trained on, from now on."""
    batches: list[list[str]] = []
    original = TorchAgent.batch_act

    def batch_act(self, observations):
        if isinstance(observations, list):
            texts = [o["text"] for o in observations if o.get("labels")]
        else:
            texts = questions_of(observations)
        if texts:
            batches.append(texts)
        return original(self, observations)

    monkeypatch.setattr(TorchAgent, "batch_act", batch_act)
    return batches


def questions(count: int = EXAMPLES) -> list[str]:
    return sorted(f"question {n}" for n in range(count))


def questions_of(batch) -> list[str]:
    """The questions in a batch of a background worker, which keeps only the answers as text."""
    return [label.replace("answer", "question") for label in batch.labels]


def flat(batches: list[list[str]]) -> list[str]:
    return [text for batch in batches for text in batch]


# ---- one epoch is every example once


@pytest.mark.parametrize("datatype", ["train", "train:stream"])
def test_an_epoch_of_batches(options, trained_on, tmp_path, datatype):
    TrainModel.main(**options, datatype=datatype, num_epochs=2, model_file=str(tmp_path / "model"))
    seen = flat(trained_on)
    assert len(seen) == 2 * EXAMPLES
    assert sorted(seen[:EXAMPLES]) == sorted(seen[EXAMPLES:]) == questions()
    assert seen[:EXAMPLES] != seen[EXAMPLES:]


@mostly_long("datatype", ["train", "train:stream"], quick=1)
def test_dynamic_batches(options, trained_on, tmp_path, datatype):
    """ParlAI puts 1,021 examples aside and takes those of one length together: what comes first is not known."""
    options = options | {"dynamic_batching": "full", "eval_dynamic_batching": "off"}
    TrainModel.main(**options, datatype=datatype, num_epochs=4, model_file=str(tmp_path / "model"))
    assert len(flat(trained_on)) >= 4 * EXAMPLES
    assert set(flat(trained_on)) <= set(questions())
    assert max(map(len, trained_on)) > options["batchsize"]


def test_dynamic_batches_of_an_evaluation(options):
    opt = TrainModel.setup_args().parse_kwargs(**options, datatype="train:ordered:stream", dynamic_batching="full")
    world = create_task(opt, create_agent(opt))
    while not world.epoch_done():
        world.parley()
    assert world.get_total_exs() == EXAMPLES


@mostly_long(
    ("datatype", "workers"), [("train", 2), ("train:stream", 2), ("train:stream", 1), ("train:stream", 3)], quick=2
)
def test_background_workers(options, datatype, workers):
    """The examples that the workers give in an epoch are, together, every example once."""
    opt = TrainModel.setup_args().parse_kwargs(**options, datatype=datatype, num_workers=workers)
    agent = create_agent(opt)
    world = create_task(opt, agent)
    shares: list[list[str]] = [[] for _ in range(workers)]
    sizes = [len(range(n, EXAMPLES, workers)) for n in range(workers)]
    try:
        while any(len(share) < size for share, size in zip(shares, sizes, strict=True)):
            index, batch = world._queue_get()
            shares[index] += questions_of(batch)
    finally:
        world.shutdown()
    assert sorted(flat([share[:size] for share, size in zip(shares, sizes, strict=True)])) == questions()


@pytest.mark.long
def test_training_with_background_workers(options, trained_on, tmp_path):
    """An epoch of both workers: their queue gives the batch that is ready first, so one of them may be ahead."""
    options = options | {"datatype": "train:stream", "num_workers": 2}
    TrainModel.main(**options, num_epochs=2, model_file=str(tmp_path / "model"))
    assert len(flat(trained_on)) == 2 * EXAMPLES
    ahead = Counter(flat(trained_on))
    assert set(ahead) <= set(questions())
    assert len(ahead) >= EXAMPLES // 2  # the share of one, if it was ahead all the time


def _one_process(rank: int, count: int, rendezvous: str, opt, results) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=count)
    world = create_task(opt, _Listener())
    teacher = world.get_task_agent()
    share = len(range(rank, EXAMPLES, count))
    results.put([teacher.act()["text"] for _ in range(share)])
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


class _Listener:
    """An agent that does nothing."""

    id = "listener"

    def share(self):
        return {"class": _Listener, "opt": {}}

    def reset(self):
        pass


@pytest.mark.parametrize("datatype", ["train:stream", "valid"])
@mostly_long("count", [2, 3], quick=1)
def test_distributed_processes(options, tmp_path, datatype, count):
    folder = options.pop("selection_folder")
    options |= {"selection_file": f"{folder}/train.jsonl", "batchsize": 1, "datatype": datatype}
    opt = TrainModel.setup_args().parse_kwargs(**options)
    results = torch.multiprocessing.get_context("fork").Queue()
    arguments = (count, f"file://{tmp_path}/rendezvous", opt, results)
    processes = torch.multiprocessing.start_processes(
        _one_process, arguments, nprocs=count, join=False, start_method="fork"
    )
    while not processes.join():  # raises what a process has raised
        pass
    shares = [results.get(timeout=120) for _ in range(count)]
    assert sorted(flat(shares)) == questions()


# ---- a resumed run


@mostly_long(("datatype", "steps"), [("train:stream", 6), ("train", 3), ("train:stream", 8)], quick=1)
def test_a_resumed_run_goes_on_with_the_next_example(options, trained_on, tmp_path, datatype, steps):
    """In the middle of an epoch, at its end, and in the middle of the second one."""
    options = options | {"datatype": datatype}
    TrainModel.main(**options, max_train_steps=10, model_file=str(tmp_path / "undisturbed"))
    undisturbed = trained_on.copy()
    trained_on.clear()
    TrainModel.main(**options, max_train_steps=steps, model_file=str(tmp_path / "model"))
    assert trained_on == undisturbed[:steps]
    TrainModel.main(**options, max_train_steps=10, model_file=str(tmp_path / "model"))
    assert trained_on == undisturbed


@pytest.mark.long
def test_a_killed_run_goes_on_from_its_checkpoint(options, trained_on, tmp_path, monkeypatch):
    options = options | {"datatype": "train:stream", "validation_every_n_steps": 4, "save_after_valid": True}
    TrainModel.main(**options, max_train_steps=9, model_file=str(tmp_path / "undisturbed"))
    undisturbed = trained_on.copy()
    trained_on.clear()
    recording = TorchAgent.batch_act

    def dies(self, observations):
        if len(trained_on) == 6:
            raise MemoryError("killed")
        return recording(self, observations)

    monkeypatch.setattr(TorchAgent, "batch_act", dies)
    with pytest.raises(MemoryError):
        TrainModel.main(**options, max_train_steps=9, model_file=str(tmp_path / "model"))
    assert trained_on == undisturbed[:6]
    monkeypatch.setattr(TorchAgent, "batch_act", recording)
    trained_on.clear()
    TrainModel.main(**options, max_train_steps=9, model_file=str(tmp_path / "model"))
    assert trained_on == undisturbed[4:]  # the model was trained on four batches when it was saved


# ---- tasks together, and ParlAI's own


@mostly_long("datatype", ["train", "train:stream"], quick=1)
def test_multitask(trained_on, datapath, tmp_path, datatype):
    tasks = ["selection:convai2", "selection:dstc7"]
    options = TRAINING | {"task": ",".join(tasks), "datapath": str(datapath), "datatype": datatype}
    valid, _ = TrainModel.main(**options, num_epochs=1, model_file=str(tmp_path / "model"))
    kinds = Counter("dstc7" if text.startswith("participant") else "convai2" for text in flat(trained_on))
    assert set(kinds) == {"dstc7", "convai2"}
    for task, count in zip(tasks, (8, 12), strict=True):
        assert valid[f"{task}/exs"].value() == count
        assert 0 <= valid[f"{task}/hits@1"].value() <= 1


@mostly_long("task", ["selection:ubuntu", "selection:wiki", "selection:reddit", "selection:amazonqa"], quick=1)
def test_every_task_trains(trained_on, datapath, tmp_path, task):
    options = TRAINING | {"task": task, "datapath": str(datapath), "datatype": "train:stream"}
    options |= {"wiki_candidates": 5} if task == "selection:wiki" else {}
    valid, _ = TrainModel.main(**options, max_train_steps=3, model_file=str(tmp_path / "model"))
    assert len(trained_on) == 3
    examples = {"selection:ubuntu": 8, "selection:wiki": 6}.get(task, 100)
    assert valid["exs"].value() == examples
    assert "hits@1" in valid


@mostly_long("task", ["convai2", "dstc7", "ubuntu"], quick=1)
def test_parlais_own_tasks(trained_on, datapath, tmp_path, task):
    """ParlAI's readers of the same files, under our agents."""
    options = TRAINING | {"task": task, "datapath": str(datapath), "model_file": str(tmp_path / "model")}
    options = {name: value for name, value in options.items() if name != "num_negatives"}  # a flag of our tasks
    valid, _ = TrainModel.main(**options, max_train_steps=3)
    assert len(trained_on) == 3
    assert valid["exs"].value() == {"convai2": 8, "dstc7": 12, "ubuntu": 8}[task]
    assert 0 <= valid["hits@1"].value() <= 1
