"""Documents are read as their readers read them: blocks in order, commands as a shell takes them."""

from __future__ import annotations

import pytest

from tests.docs.snippets import Command, Snippet, commands, read_snippets

DOCUMENT = """# Title

Text with `parlai inline`.

```sh
one --flag
```

<!-- not run: downloads
     a model -->

```python
two()
```

1. In a list:

   ```sh
   three
   ```

```json
{}
```
"""


@pytest.fixture
def document(tmp_path):
    """(text) -> a file with it."""

    def make(text: str):
        path = tmp_path / "document.md"
        path.write_text(text, encoding="utf-8")
        return path

    return make


def test_blocks_of_commands_and_python_are_read_with_their_lines(document):
    read = [(s.line, s.language, s.text, s.not_run) for s in read_snippets(document(DOCUMENT))]
    assert read == [
        (6, "sh", "one --flag\n", None),
        (13, "python", "two()\n", "downloads a model"),
        (19, "sh", "three\n", None),
    ]


@pytest.mark.parametrize("behind", ["Text.\n\n```sh\none\n```\n", "```json\n{}\n```\n\n```sh\none\n```\n", ""])
def test_a_mark_belongs_to_the_block_below_it(document, behind):
    with pytest.raises(ValueError, match="why"):
        read_snippets(document(f"<!-- not run: why -->\n\n{behind}"))


def recorded(text, tmp_path, **variables):
    return commands(Snippet(tmp_path / "document.md", 10, "sh", text), variables, tmp_path)


def test_a_shell_splits_quotes_continues_and_comments(tmp_path):
    text = "# all\n\nparlai x --context 'hi !' \"it's\"  # behind\npip install \\\n    '.[onnx]'\n"
    first, second = recorded(text, tmp_path)
    assert first == Command(12, ("parlai", "x", "--context", "hi !", "it's"))
    assert second.arguments == ("pip", "install", ".[onnx]")
    assert second.line in (13, 14)


def test_variables_hold_for_the_snippets_behind(tmp_path):
    variables = {"DATA": "a folder"}
    first = Snippet(tmp_path / "document.md", 1, "sh", 'TASK="-t task\n  --datapath here"\nexport OTHER=$DATA\n')
    second = Snippet(tmp_path / "document.md", 5, "sh", 'parlai $TASK "$OTHER"\n')
    assert commands(first, variables, tmp_path) == []
    assert commands(second, variables, tmp_path) == [
        Command(5, ("parlai", "-t", "task", "--datapath", "here", "a folder"))
    ]
    assert variables["OTHER"] == "a folder"


def test_patterns_are_those_of_the_folder(tmp_path):
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).touch()
    assert recorded("cat *.txt '*.txt'\n", tmp_path)[0].arguments == ("cat", "a.txt", "b.txt", "*.txt")


@pytest.mark.parametrize(("text", "message"), [("echo $UNKNOWN\n", "UNKNOWN"), ("parlai 'open\n", "matching")])
def test_what_bash_refuses_is_an_error_with_its_place(tmp_path, text, message):
    with pytest.raises(ValueError, match=rf"document.md:10: .*{message}"):
        recorded(text, tmp_path)
