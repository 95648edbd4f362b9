"""Choose the tools of an agent: which three of many descriptions does this conversation need?

    python examples/choose_tools.py

A language model with fewer tools in its prompt is cheaper, and errs less often. Tools may have the format of OpenAI or
of MCP, and the conversation may be the messages of a chat, as the APIs of language models take them.
"""

from __future__ import annotations

from polyencoder import Ranker, Selector

TOOLS = [
    {"name": "get_weather", "description": "Current weather and forecast for a city."},
    {"name": "book_train", "description": "Search train connections and book tickets."},
    {"name": "currency", "description": "Convert an amount of money from one currency into another."},
    {"name": "calendar_create", "description": "Create an appointment in the user's calendar."},
    {"name": "calendar_list", "description": "List the user's appointments of a day or a week."},
    {"name": "send_email", "description": "Write and send an e-mail."},
    {"name": "search_files", "description": "Find documents in the user's files by their content."},
    {"name": "run_python", "description": "Execute Python code and return what it prints."},
    {"name": "translate", "description": "Translate a text into another language."},
    {"name": "play_music", "description": "Play a song, an album or a playlist."},
]


def main(*, encoder: str = "sentence-transformers/all-MiniLM-L6-v2") -> None:
    selector = Selector(Ranker.load(encoder))
    messages = [
        {"role": "user", "content": "I have to be in Vienna on Monday at ten."},
        {"role": "assistant", "content": "Shall I look for a connection?"},
        {"role": "user", "content": "Yes, and will I need an umbrella there?"},
    ]
    for choice in selector.select(messages, TOOLS, top_k=3).chosen:
        print(f"{choice.score:5.2f}  {choice.name}")


if __name__ == "__main__":
    main()
