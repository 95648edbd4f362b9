"""`StoredTokens`: what the description of an index says of its token vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from polyencoder.checks import check_choice, check_fields, checked_count
from polyencoder.errors import InputError

if TYPE_CHECKING:
    from polyencoder.modeling.base import RankerModel

TokenDtype = Literal["int8", "float16"]


@dataclass(frozen=True)
class StoredTokens:
    """Which token vectors an index holds.

    Args:
        fingerprint: of the weights behind the candidate tower that they depend on.
    """

    dtype: TokenDtype
    dim: int
    fingerprint: str

    @classmethod
    def of(cls, model: RankerModel, dtype: TokenDtype) -> StoredTokens:
        """Those of this model. InputError for a model without any, ConfigError for another dtype."""
        check_choice("store_tokens", dtype, get_args(TokenDtype))
        if model.token_dim is None:
            raise InputError(
                f"a {model.title} compares no token vectors that an index could hold; store_tokens is for a "
                "late-interaction encoder",
                argument="store_tokens",
            )
        return cls(dtype, model.token_dim, model.token_fingerprint or "")

    @classmethod
    def parsed(cls, values: dict[str, Any]) -> StoredTokens:
        """Parses JSON. Raises TypeError or ConfigError for invalid values."""
        parsed = cls(**values)
        check_fields(parsed)
        checked_count("dim", parsed.dim)
        return parsed
