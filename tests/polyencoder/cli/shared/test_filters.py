"""`--filter`: tests of metadata in a short form."""

from __future__ import annotations

import pytest

from polyencoder.cli.shared.filters import read_filter
from polyencoder.errors import InputError


@pytest.mark.parametrize(
    ("tests", "filter"),
    [
        ([], None),
        (["lang=en", "n=3", "n=x"], {"$and": [{"lang": ["en"]}, {"n": ["3", 3, "x"]}]}),
        (["a="], {"$and": [{"a": [""]}]}),
        (["a=b=c", "url=x>=1"], {"$and": [{"a": ["b=c"]}, {"url": ["x>=1"]}]}),
        (["year>=2020", "year<2024"], {"$and": [{"year": {"$gte": 2020}}, {"year": {"$lt": 2024}}]}),
        (["a>1", "a<=x"], {"$and": [{"a": {"$gt": 1}}, {"a": {"$lte": "x"}}]}),
        (['a>="2020"'], {"$and": [{"a": {"$gte": "2020"}}]}),
        (["a!=null", "a!=[1]"], {"$and": [{"a": {"$nin": ["null", None]}}, {"a": {"$nin": ["[1]"]}}]}),
        (["a=NaN"], {"$and": [{"a": ["NaN"]}]}),
    ],
)
def test_each_sign(tests, filter):
    assert read_filter(tests) == filter


@pytest.mark.parametrize("test", ["lang", "=en", ">3", "a=\ud800", 'a="\\ud800"'])
def test_what_is_no_test(test):
    with pytest.raises(InputError, match="--remove-where"):
        read_filter([test], flag="--remove-where")
