"""What commands write: texts from files cannot steer the terminal that shows them."""

from __future__ import annotations

import json

from polyencoder.cli.shared.output import format_table, say


def test_control_characters_are_written_as_json_writes_them(capsys):
    say("\x1b[2Jcleared\x07 \x9b31m\ttab\nline é")
    assert capsys.readouterr().out == "\\u001b[2Jcleared\\u0007 \\u009b31m\ttab\nline é\n"


def test_json_stays_json(capsys):
    value = {"text": "a\x1b\x7f\x85\r\n\tb"}
    say(json.dumps(value, ensure_ascii=False))
    written = capsys.readouterr().out
    assert json.loads(written) == value
    assert written.rstrip("\n").isprintable()


def test_columns_of_a_table_are_aligned_without_spaces_at_the_end():
    assert format_table([("name", "size"), ("a", "10 MB"), ("longer", "")]) == "name    size\na       10 MB\nlonger"
