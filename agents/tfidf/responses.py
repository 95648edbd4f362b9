"""The responses of a task's training data: what the weights of words are learnt from."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from parlai.core.opt import Opt
from parlai.core.teachers import create_task_agent_from_taskname

from polyencoder.errors import ConfigError


def training_responses(opt: Opt) -> Iterator[str]:
    """The labels of the task's training examples, each example once and in order.

    Raises:
        ConfigError: there is no task, or one without data.
    """
    if opt.get("task") in (None, "", "interactive"):
        raise ConfigError("tfidf has no task to learn from: give -mf a file that `parlai train_model -m tfidf` wrote")
    opt = copy.deepcopy(opt)
    opt.update(
        datatype="train:ordered:stream",
        batchsize=1,
        candidates="batch",  # a teacher need not look for candidates
        image_mode="no_image_model",
    )
    teacher = create_task_agent_from_taskname(opt)[0]  # of several tasks, ParlAI makes one teacher
    try:
        while not teacher.epoch_done():
            message = teacher.act()
            yield from message.get("labels") or ()
    finally:
        teacher.shutdown()
