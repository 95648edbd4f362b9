"""Conversations under `-t selection:NAME`: ParlAI's own, by the names that its loader looks for.

Without them `interactive` ends with a traceback and `self_chat` has no first message.
"""

from __future__ import annotations

from parlai.core.worlds import World
from parlai.tasks.interactive.worlds import InteractiveWorld
from parlai.tasks.self_chat import worlds as self_chat

from polyencoder.errors import ConfigError

__all__ = ["InteractiveWorld", "SelfChatWorld"]


class SelfChatWorld(self_chat.SelfChatWorld):
    """ParlAI's self-chat, which would read the openers of `-t selection`, whatever the task's name."""

    def init_openers(self) -> None:
        if self.opt.get("seed_messages_from_task"):
            problem = f"--seed-messages-from-task: self_chat cannot read the first messages of {self.opt['task']}"
            raise ConfigError(f"{problem}; give --seed-messages-from-file FILE, with one message a line")
        super().init_openers()


def __getattr__(name: str) -> type[World]:
    """`InteractiveConvai2World` and so on."""
    for kind in (InteractiveWorld, SelfChatWorld):
        if name.startswith(kind.__name__.removesuffix("World")) and name.endswith("World"):
            return kind
    raise AttributeError(name)
