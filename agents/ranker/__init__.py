"""What the rankers share: one base agent and its parts."""

from parlai.agents.ranker.install_check import require_parlai

require_parlai()
