# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Multi-turn reinforcement learning of language-model agents on TRL.

Invariant: importing this package imports nothing but itself. Each public name is imported from its module when it is
first used, so that environment workers never pay for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .actions import ActionFormat, ParsedResponse
    from .callbacks import EchoTrapCallback
    from .context import FullHistory, ReportedHistory, Window
    from .environment import EnvironmentContractError, NonDeterministicResetError, TextEnvironment, TextSpace, make
    from .episode import Episode, Turn
    from .trainer.agent_config import AgentGRPOConfig
    from .trainer.agent_trainer import AgentGRPOTrainer
    from .trainer.gigpo_config import GiGPOConfig
    from .trainer.gigpo_trainer import GiGPOTrainer
    from .trainer.starpo_config import StarPOConfig, StarPOSConfig
    from .trainer.starpo_trainer import StarPOTrainer

__version__ = "0.1.0.dev0"

__all__ = [
    "ActionFormat",
    "AgentGRPOConfig",
    "AgentGRPOTrainer",
    "EchoTrapCallback",
    "EnvironmentContractError",
    "Episode",
    "FullHistory",
    "GiGPOConfig",
    "GiGPOTrainer",
    "NonDeterministicResetError",
    "ParsedResponse",
    "ReportedHistory",
    "StarPOConfig",
    "StarPOSConfig",
    "StarPOTrainer",
    "TextEnvironment",
    "TextSpace",
    "Turn",
    "Window",
    "__version__",
    "make",
]

_MODULE_OF = {
    "ActionFormat": ".actions",
    "AgentGRPOConfig": ".trainer.agent_config",
    "AgentGRPOTrainer": ".trainer.agent_trainer",
    "EchoTrapCallback": ".callbacks",
    "EnvironmentContractError": ".environment",
    "Episode": ".episode",
    "FullHistory": ".context",
    "GiGPOConfig": ".trainer.gigpo_config",
    "GiGPOTrainer": ".trainer.gigpo_trainer",
    "NonDeterministicResetError": ".environment",
    "ParsedResponse": ".actions",
    "ReportedHistory": ".context",
    "StarPOConfig": ".trainer.starpo_config",
    "StarPOSConfig": ".trainer.starpo_config",
    "StarPOTrainer": ".trainer.starpo_trainer",
    "TextEnvironment": ".environment",
    "TextSpace": ".environment",
    "Turn": ".episode",
    "Window": ".context",
    "make": ".environment",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
