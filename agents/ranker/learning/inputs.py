"""The data and models that a run will read, opened before it begins.

ParlAI opens the validation data at the first validation and the test data at the end: what is missing or broken there
would be found after hours of training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from parlai.agents.ranker.learning.schedule import needs_length
from parlai.core.agents import Agent
from parlai.core.opt import Opt
from parlai.core.worlds import World, create_task
from parlai.utils.distributed import num_workers

from polyencoder.errors import InputError, PolyencoderError, first_line
from polyencoder.training.progress import Goal
from polyencoder.training.randomness import random_state, restore_random_state

__all__ = ["check_evaluation_data", "planned_updates"]


def check_evaluation_data(opt: Opt) -> None:
    """Open the validation and the test data, as the training loop will.

    Raises:
        InputError: they are missing or cannot be read.
    """
    for fold in ("valid", "test"):
        with _opened(opt, fold):
            pass


def planned_updates(opt: Opt) -> int | None:
    """How many updates a run has, of `--max-train-steps` and `--num-epochs` what comes first; None if nobody can know.

    The training data is opened to count its examples, if a schedule asks for it. Nobody knows how many updates an
    epoch has with batches of many sizes (`--dynamic-batching`), or where the task does not know its size.
    """
    steps, epochs = opt.get("max_train_steps") or -1, opt.get("num_epochs") or -1
    examples = None
    if epochs > 0 and needs_length(opt) and not opt.get("dynamic_batching"):
        with _opened(opt, "train") as world:
            examples = epochs * (world.num_examples() or 0) or None
    batch = max(1, opt.get("batchsize") or 1) * num_workers()
    return Goal(examples, steps if steps > 0 else None).total_updates(
        batch=batch, accumulate=max(1, opt.get("update_freq") or 1)
    )


@contextmanager
def _opened(opt: Opt, fold: str) -> Iterator[World]:
    """A part of the task, as nobody's: whatever was drawn by chance in opening it is forgotten."""
    task = opt["task"] if fold == "train" or not opt.get("evaltask") else opt["evaltask"]
    datatype = f"{fold}:stream" if "stream" in opt["datatype"] else fold
    alone = {"batchsize": 1, "dynamic_batching": None, "num_workers": 0, "model_file": None}
    before, own = random_state(Random()), Random()
    world = None
    try:
        world = create_task(Opt({**opt, **alone, "task": task, "datatype": datatype}), Agent(opt))
        yield world
    except PolyencoderError:
        raise
    except Exception as error:  # a task's own code raises anything
        raise InputError(
            f"-t {task}: its data for {fold} cannot be opened: {type(error).__name__}: {first_line(error)}. Training "
            "reads it, and is not begun without"
        ) from error
    finally:
        if world is not None:
            world.shutdown()
        restore_random_state(before, own)
