"""Carries schedules out. An engine opens a checkpoint, runs one pass over one batch, and knows nothing of documents."""

from causalab_mini.engine.contract import Batch, Engine, State, Visit
from causalab_mini.engine.execute import execute
from causalab_mini.engine.run import PointResult, Run, StepResult

__all__ = ["Batch", "Engine", "PointResult", "Run", "State", "StepResult", "Visit", "execute"]
