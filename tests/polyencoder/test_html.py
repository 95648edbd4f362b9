"""The frame of HTML pages and their tables."""

from __future__ import annotations

from polyencoder.html import page, table
from tests.html_page import Page

MARKUP = "</title></style><script>alert(1)</script>&amp;"


def test_a_page_escapes_its_title_and_the_names_of_columns():
    made = Page(page(MARKUP, [table([MARKUP, "n"], ["<td>a</td><td>1</td>", "<td>b</td><td>2</td>"])]))
    assert made.words.count(MARKUP) == 2
    assert made.tables == [[[MARKUP, "n"], ["a", "1"], ["b", "2"]]]
    assert "script" not in {tag for tag, _ in made.tags}
    assert made.loads == []


def test_a_page_can_be_written_whatever_the_names_of_files_are():
    assert "<p>runs/??</p>" in page("runs", ["<p>runs/\udcff\udce9</p>"])
