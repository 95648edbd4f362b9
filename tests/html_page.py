"""An HTML page as tests read it."""

from __future__ import annotations

from html.parser import HTMLParser

__all__ = ["Page"]


class Page(HTMLParser):
    """The tags, the words and the tables of a page; raises for one that closes what it has not opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.tables: list[list[list[str]]] = []
        """Of each table the texts of its cells, by rows; the first row is the heading."""
        self.feed(text)
        assert not self.open

    @property
    def loads(self) -> list[str]:
        """What the page loads or leads to, besides its own parts."""
        links = (value for _, tag in self.tags for name, value in tag.items() if name.split(":")[-1] in ("src", "href"))
        return [value for value in links if not value.startswith("#")]

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
