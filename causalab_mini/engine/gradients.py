"""Whether a forward can be differentiated."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal

import torch

Mode = Literal["off", "constant", "on"]
"""`off`: what comes out is only looked at; `constant`: it may stand in a later computation that is differentiated; `on`: it is itself."""


def gradients(mode: Mode) -> AbstractContextManager[object]:
    """Returns the context that a mode computes in."""
    if mode == "off":
        return torch.inference_mode()
    return torch.set_grad_enabled(mode == "on")
