"""Metadata in a table come back as they were, and values of filters are bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyencoder.errors import InputError
from polyencoder.index.entries import Candidate, format_metadata
from polyencoder.index.postgres.index import PostgresIndex
from polyencoder.index.postgres.rows import write_condition
from tests.polyencoder.index.postgres.tables import drawn, names, stored

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.text('ab\\"u0'), json_values, max_size=3), min_size=1, max_size=20))
def test_metadata_come_back_as_they_were(postgres, metadata):
    index = stored(f"{postgres.address}#{next(names)}", np.ones((len(metadata), 2), np.float32), metadata)
    hits = index.search(drawn(1, 1, 2, contexts=1)[1], top_k=100)[0]
    for hit in hits:
        assert format_metadata(hit.metadata) == format_metadata(metadata[int(hit.id)])
    index.close()


def test_texts_are_bound(where):
    index = stored(where, drawn(3, 1, 4)[0], [{"'; DROP TABLE x; --": "'{}%s%(a)s"}, {}, {}])
    assert index.count({"'; DROP TABLE x; --": "'{}%s%(a)s"}) == 1
    text, _ = write_condition({"key'": ["value'", None]})
    assert "'" not in text


@pytest.mark.parametrize("record", [Candidate("a\0", "x"), Candidate("a", "x\0")])
def test_nul_is_an_error_that_names_the_record(record):
    with pytest.raises(InputError, match=r"line 3: not a candidate that PostgreSQL can hold: .* NUL"):
        PostgresIndex._make_entry(record._replace(where="line 3"))
    PostgresIndex._make_entry(Candidate("a", "x", {"m": "\0"}))
