"""Choose the tools of an agent: which three of many descriptions does this conversation need?

    python examples/choose_tools.py

A language model with fewer tools in its prompt is cheaper, and errs less often. The conversation may be the messages of
a chat, as the APIs of language models take them.
"""

from __future__ import annotations

from polyencoder import Ranker

TOOLS = {
    "get_weather": "Current weather and forecast for a city.",
    "book_train": "Search train connections and book tickets.",
    "currency": "Convert an amount of money from one currency into another.",
    "calendar_create": "Create an appointment in the user's calendar.",
    "calendar_list": "List the user's appointments of a day or a week.",
    "send_email": "Write and send an e-mail.",
    "search_files": "Find documents in the user's files by their content.",
    "run_python": "Execute Python code and return what it prints.",
    "translate": "Translate a text into another language.",
    "play_music": "Play a song, an album or a playlist.",
}


def main(*, encoder: str = "sentence-transformers/all-MiniLM-L6-v2") -> None:
    ranker = Ranker.load(encoder)
    messages = [
        {"role": "user", "content": "I have to be in Vienna on Monday at ten."},
        {"role": "assistant", "content": "Shall I look for a connection?"},
        {"role": "user", "content": "Yes, and will I need an umbrella there?"},
    ]
    names = list(TOOLS)
    for hit in ranker.rank(messages, [f"{name}: {TOOLS[name]}" for name in names], top_k=3):
        print(f"{hit.score:5.2f}  {names[hit.index]}")


if __name__ == "__main__":
    main()
