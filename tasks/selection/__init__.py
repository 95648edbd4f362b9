"""Response selection tasks: `-t selection:NAME`."""

from parlai.agents.ranker.install_check import require_parlai

require_parlai()
