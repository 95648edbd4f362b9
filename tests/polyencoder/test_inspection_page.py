"""The page of an inspected ranking: texts are shown as text, and colours are full at the largest weight of a table."""

from __future__ import annotations

import re

from polyencoder.inspection import Inspection
from polyencoder.inspection_page import inspection_page
from polyencoder.ranked import Ranked
from tests.html_page import Page

RANKED = [Ranked(1, "<b>yes</b>", 2.0), Ranked(0, "no", 1.0)]


def heats(page: str) -> list[tuple[float, str]]:
    """The colour, from 0 to 1, and the text of each cell with a weight."""
    return [
        (float(one), text) for one, text in re.findall(r'class="heat" style="background:[^"]* ([\d.]+)\)">(\d*)<', page)
    ]


def test_weights_of_candidates_and_of_tokens():
    tokens = {"tokens": ["[CLS]", "a&b"], "token_weights": [[0.9, 0.1], [0.002, 0.998]]}
    page = inspection_page(
        Inspection("poly-encoder", ["<i>hi</i>"], RANKED, weights=[[0.8, 0.2], [0.4, 0.6]], **tokens)
    )
    assert heats(page)[:4] == [(1.0, "80"), (0.25, "20"), (0.5, "40"), (0.75, "60")]
    assert [text for _, text in heats(page)[4:]] == ["90", "", "10", "100"]  # a row for each token; 0.2% is not shown
    assert heats(page)[-1][0] == 1.0
    assert "&lt;b&gt;yes&lt;/b&gt;" in page
    assert "&lt;i&gt;hi&lt;/i&gt;" in page
    assert "a&amp;b" in page


def test_a_model_without_weights_says_why():
    page = inspection_page(Inspection("cross-encoder", ["hi"], RANKED, "it has none"))
    assert heats(page) == []
    assert "<p>it has none</p>" in page


def test_a_page_escapes_what_it_shows_and_can_be_written():
    markup = "</title></style><script>alert(1)</script>&amp;"
    made = inspection_page(Inspection(f"{markup}\udcff", [markup], RANKED, objectives={markup: [1.0, 2.0]}))
    page = Page(made.encode().decode())
    assert page.words.count(markup) == 2
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.loads == []
