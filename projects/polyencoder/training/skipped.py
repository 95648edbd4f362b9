"""Skips batches without any negatives to train on; too many in a row end training.

A skipped batch makes no update, so a run with a maximum number of updates might never end.
"""

from __future__ import annotations

from polyencoder.errors import InputError
from polyencoder.settings.training import HardNegatives

AT_FIRST = 100  # batches in a row, before the first that can be trained on
LATER = 10_000  # of data in which a few batches can


class SkippedBatches:
    """Counts consecutive batches that no process could train on, and ends training after too many.

    Args:
        hard: the settings of hard negatives, which join the candidates once they have been mined.
    """

    def __init__(self, hard: HardNegatives) -> None:
        self._hard, self._in_a_row = hard, 0
        self.has_trained = False
        """Whether any batch was not skipped."""

    def count(self, *, is_skipped: bool) -> None:
        """Counts a batch, in all processes. Raises InputError after too many skipped ones in a row."""
        if not is_skipped:
            self.has_trained, self._in_a_row = True, 0
            return
        self._in_a_row += 1
        if self._in_a_row >= (LATER if self.has_trained else AT_FIRST) + (self._hard.every if self._hard.count else 0):
            raise self.error(self._in_a_row)

    def error(self, batches: int) -> InputError:
        """The error for a run whose batches, all or the last ones, were skipped."""
        which = f"nothing more can be trained: in each of the last {batches} batches"
        if not self.has_trained:
            which = f"nothing was trained: in all of {batches} batches"
        advice = "give a larger batch_size, or data with different labels"
        if self._hard.count:
            ranks = "-".join(map(str, self._hard.ranks))
            margin = "" if self._hard.margin is None else f" and margin {self._hard.margin:g}"
            advice += f"; no hard negative was found in ranks {ranks}{margin}"
        return InputError(
            f"{which} the label was the only candidate, or no candidate was wrong; {advice}", argument="batch_size"
        )
