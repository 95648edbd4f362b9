"""Updates that are not finite, of scaled losses: the scaler leaves them out, but not for ever."""

from __future__ import annotations

import pytest

from polyencoder.errors import TrainingError
from polyencoder.training.finite import OVERFLOWS, FiniteUpdates


def test_gradients_that_no_scale_makes_finite_end_training():
    finite = FiniteUpdates(limit=3)
    for number in range(2 * OVERFLOWS - 1):  # one update between them begins the count anew
        finite.check_scaled(1.0 if number == OVERFLOWS - 1 else float("inf"), number=number)
    with pytest.raises(TrainingError, match="update 100: the gradients are not finite at any scale of the loss"):
        finite.check_scaled(float("nan"), number=100)
