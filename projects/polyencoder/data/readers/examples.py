"""What a ranker is evaluated on, and calibrated with."""

from __future__ import annotations

from collections.abc import Sequence

Example = tuple[Sequence[str] | str, str, Sequence[str]]
"""A context (its turns, or one text), its label, and the candidates, of which the label is one."""
