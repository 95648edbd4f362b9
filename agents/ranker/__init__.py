"""What our agents share: their base classes and parts."""

from parlai.agents.ranker.install_check import require_parlai

require_parlai()
