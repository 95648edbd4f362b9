"""Batches without an example to learn from are skipped; too many in a row end training.

They make no update, so a run of a number of updates would never end.
"""

from __future__ import annotations

from polyencoder.errors import InputError
from polyencoder.settings.training import HardNegatives

__all__ = ["SkippedBatches"]

AT_FIRST = 100  # batches in a row, before the first that has an example to learn from
LATER = 10_000  # of data in which a few of the batches have one


class SkippedBatches:
    """Counts the batches in a row that no process could learn from, and ends training when these are too many.

    Args:
        hard: the settings of hard negatives, which join the candidates once they have been mined.
    """

    def __init__(self, hard: HardNegatives) -> None:
        self._hard, self._in_a_row = hard, 0
        self.has_trained = False
        """Whether any batch was not skipped."""

    def count(self, *, is_skipped: bool) -> None:
        """Count a batch, in all processes alike. Raises InputError where too many in a row were skipped."""
        if not is_skipped:
            self.has_trained, self._in_a_row = True, 0
            return
        self._in_a_row += 1
        if self._in_a_row >= (LATER if self.has_trained else AT_FIRST) + (self._hard.every if self._hard.count else 0):
            raise self.error(self._in_a_row)

    def error(self, batches: int) -> InputError:
        """The error of a run, all or the last of whose batches were skipped."""
        which = f"nothing more can be trained: in each of the last {batches} batches"
        if not self.has_trained:
            which = f"nothing was trained: in all of {batches} batches"
        advice = "give a larger batch_size, or data with different labels"
        if self._hard.count:
            ranks = "-".join(map(str, self._hard.ranks))
            margin = "" if self._hard.margin is None else f" and margin {self._hard.margin:g}"
            advice += f"; no hard negative was found in ranks {ranks}{margin}"
        return InputError(f"{which} the label was the only candidate; {advice}", argument="batch_size")
