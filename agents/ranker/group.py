"""ParlAI's options in distributed training: a process group, and its flags."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import parlai.utils.logging as logging
import torch.distributed as dist
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser

from polyencoder.training.process_group import TIMEOUT, Place
from polyencoder.training.process_group import process_group as joined

__all__ = ["Place", "add_group_arguments", "process_group"]

OF_THE_HOST = {"datapath", "dict_file", "gpu", "loglevel", "model_file", "parlai_home"}
"""Flags that may be others on another host."""


def add_group_arguments(parser: ParlaiParser) -> None:
    """The launcher's own flags."""
    parser.add_argument_group("Several processes").add_argument(
        "--group-timeout",
        type=float,
        default=TIMEOUT,
        help="Seconds that a process of the group waits for another one, which may be busy or out of reach, before it "
        "ends with an error.",
    )


@contextmanager
def process_group(opt: Opt, place: Place) -> Iterator[Opt]:
    """Join the others; gives the options for this process. Raises as the library's `process_group` does."""
    given = {name: value for name, value in opt.get("override", {}).items() if name not in OF_THE_HOST}
    with joined(place, given, timeout=opt["group_timeout"], on_cpu=bool(opt.get("no_cuda"))) as device:
        logging.info(f"{place.count} processes, {dist.get_backend()}")
        gpu = place.local_rank if device.type == "cuda" else -1
        override = {**opt.get("override", {}), "gpu": gpu}  # not the one that a model file remembers
        yield Opt({**opt, "gpu": gpu, "rank": place.rank, "override": override})
