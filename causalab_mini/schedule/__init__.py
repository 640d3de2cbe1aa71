"""From what a plan means to what is run: every position located in every row, and the passes in their order.

Imports no engine and no torch: windows are tuples of token indices.
"""

from causalab_mini.schedule.locate import Window, locate
from causalab_mini.schedule.located import Pass, Schedule, StepSchedule, build_schedule

__all__ = ["Pass", "Schedule", "StepSchedule", "Window", "build_schedule", "locate"]
