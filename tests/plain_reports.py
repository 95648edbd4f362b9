"""ParlAI's reports as plain lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from parlai.scripts import eval_model, train_model

__all__ = ["plain_reports"]


@pytest.fixture(scope="session", autouse=True)
def plain_reports() -> Iterator[None]:
    """Scripts lay out no tables of their reports: with pandas a tenth of a short run. Tests read the numbers."""

    def plain(report: Mapping[str, Any]) -> str:
        return "\n".join(f"{name}: {value}" for name, value in report.items())

    with pytest.MonkeyPatch.context() as patch:
        for script in (train_model, eval_model):
            patch.setattr(script, "nice_report", plain)
        yield
