"""`python -m tests.polyencoder.cli.killed train ...`: the command, killed before the step after so many others."""

from __future__ import annotations

import os
import signal

from polyencoder.cli.main import main
from polyencoder.training.trainer import Trainer

if __name__ == "__main__":
    step, left = Trainer.step, iter(range(int(os.environ["KILLED_AFTER"])))

    def until_then(self, batch):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, batch)

    Trainer.step = until_then
    main()
