# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""Trainers: one algorithm each, over the seam with TRL."""
