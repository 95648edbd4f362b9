"""Self-contained HTML pages, which fetch nothing: the frame and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; overflow-wrap: anywhere }
table { border-collapse: collapse; display: block; overflow-x: auto }
td, th { padding: .15rem .4rem; text-align: right; vertical-align: top; overflow-wrap: normal }
th { text-align: left; font-weight: normal; opacity: .8 }
td.text { text-align: left; min-width: min(16rem, 20vw); overflow-wrap: anywhere }
svg { max-width: 100%; height: auto; background: white }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A page of these parts, which are HTML; the title is escaped, and what UTF-8 cannot hold becomes `?`."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    made = f'<!doctype html><html lang="en"><head>{head}</head><body><main>{"".join(parts)}</main></body></html>\n'
    return made.encode("utf-8", "replace").decode()  # names of files may have lone surrogates


def table(head: Sequence[str], rows: Iterable[str]) -> str:
    """A table with the names of its columns, if any, which are escaped, and rows of cells, `<td>...</td>`.

    It has a place in the order of the tab key, so that a wide one can be scrolled without a mouse.
    """
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{row}</tr>" for row in (*filter(None, [names]), *rows))
    return f'<table tabindex="0">{lines}</table>'
