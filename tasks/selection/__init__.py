"""Response selection tasks: `-t selection:NAME`."""

from parlai.agents.ranker import require_parlai

require_parlai()
