"""Conversations under this project's tasks."""

from __future__ import annotations

import pytest
from parlai.core.agents import Agent
from parlai.core.loader import load_world_module
from parlai.core.opt import Opt
from parlai.core.worlds import DialogPartnerWorld
from parlai.tasks.interactive.worlds import InteractiveWorld
from parlai.tasks.self_chat.worlds import SelfChatWorld

from polyencoder.errors import ConfigError


@pytest.mark.parametrize("task", ["selection", "selection:convai2", "selection:jsonl:selection_folder=pairs"])
def test_chats_have_a_world_and_evaluation_has_parlais(task):
    assert load_world_module(task, interactive_task=True) is InteractiveWorld
    assert issubclass(load_world_module(task, selfchat_task=True), SelfChatWorld)
    assert load_world_module(task, num_agents=2) is DialogPartnerWorld


def test_openers_of_a_task_cannot_be_read():
    chat = load_world_module("selection:convai2", selfchat_task=True)
    with pytest.raises(ConfigError, match="cannot read .* selection:convai2; give --seed-messages-from-file FILE"):
        chat(Opt(task="selection:convai2", seed_messages_from_task=True), [Agent(Opt()), Agent(Opt())])
