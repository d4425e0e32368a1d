# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""A trained agent is pushed as TRL pushes a model; the hub is faked where transformers calls it."""

from pathlib import Path
from typing import Any

import pytest
import transformers.trainer
from huggingface_hub import RepoUrl
from trainer_support import make_trainer

from trl_agentpo import GiGPOTrainer


class FakeHub:
    """Takes what would be uploaded."""

    def __init__(self) -> None:
        self.uploads: list[dict[str, Any]] = []

    def create_repo(self, repo_id: str, **kwargs: Any) -> RepoUrl:
        return RepoUrl(f"https://huggingface.co/{repo_id}")

    def upload_folder(self, **kwargs: Any) -> None:
        self.uploads.append(kwargs)


def test_the_pushed_folder_holds_the_model_the_tokenizer_and_a_true_card(
    random_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub()
    monkeypatch.setattr(transformers.trainer, "hf_api", lambda: hub)
    trainer = make_trainer(
        GiGPOTrainer, random_model, tmp_path / "lake", push_to_hub=True, hub_model_id="me/lake", hub_token="none"
    )
    trainer.train()
    trainer.push_to_hub()
    (upload,) = hub.uploads
    assert upload["repo_id"] == "me/lake"
    folder = Path(upload["folder_path"])
    assert {"model.safetensors", "tokenizer.json", "README.md"} <= {path.name for path in folder.iterdir()}
    card = (folder / "README.md").read_text()
    assert "2505.10978" in card
    assert "gigpo" in card
    assert "DeepSeekMath" not in card
