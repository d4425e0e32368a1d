# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""Fixtures that are made once a session. Nothing is loaded from the hub."""

import os


# Before torch is imported: several processes with several threads each are many times slower than with one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings
from support import byte_tokenizer, save_random_model
from transformers import Qwen2Tokenizer


torch.set_num_threads(1)

# How long an example takes says more of the machine than of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def tokenizer() -> Qwen2Tokenizer:
    """A byte tokenizer with a chat template."""
    return byte_tokenizer()


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Qwen2Tokenizer) -> str:
    """The folder of an untrained tiny chat model."""
    return save_random_model(tmp_path_factory.mktemp("random-model"), tokenizer)
