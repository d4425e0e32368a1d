# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
The environments that come with trl-agentpo, and their gymnasium ids.

Invariant: importing this package registers every id exactly once, however often it is imported, and an environment
here depends on `trl_agentpo.environment` and on nothing else of `trl_agentpo`.
"""

import gymnasium

from .bandit import Bandit
from .frozen_lake import FrozenLake
from .sokoban import Sokoban


__all__ = ["Bandit", "FrozenLake", "Sokoban"]

ENTRY_POINTS = {
    "trl_agentpo/Bandit-v0": "trl_agentpo.envs.bandit:Bandit",
    "trl_agentpo/FrozenLake-v0": "trl_agentpo.envs.frozen_lake:FrozenLake",
    "trl_agentpo/Sokoban-v0": "trl_agentpo.envs.sokoban:Sokoban",
}

for _id, _entry_point in ENTRY_POINTS.items():
    # Registering an id again makes gymnasium warn, and would discard what a user registered in its place.
    if _id not in gymnasium.registry:
        gymnasium.register(id=_id, entry_point=_entry_point)
