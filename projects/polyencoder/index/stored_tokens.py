"""`StoredTokens`: what the description of an index says of its token vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from polyencoder.checks import check_choice
from polyencoder.errors import InputError
from polyencoder.validation import Count, validated

if TYPE_CHECKING:
    from polyencoder.modeling.base import RankerModel

TokenDtype = Literal["int8", "float16"]


@validated
class StoredTokens:
    """Which token vectors an index holds.

    Args:
        fingerprint: of the weights behind the candidate tower that they depend on.
    """

    dtype: TokenDtype
    dim: Count
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
        return cls(dtype=dtype, dim=model.token_dim, fingerprint=model.token_fingerprint or "")
