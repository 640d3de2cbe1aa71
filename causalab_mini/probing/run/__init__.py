"""Extraction specs, run: activations are recorded while a model generates.

`probe` takes a spec, a model and prompts, and gives a `Recording`: a tensor a point and place, which token each line of it is, what was
said, and how often each point fired or why it did not. Knows the engine, which knows of it one thing: how a `stream` step is run (`steps`).
"""

from causalab_mini.probing.request import Request, Watched, make_request, prompts_of, watch
from causalab_mini.probing.run.observing import Routing, observe, probe
from causalab_mini.probing.run.recording import Fired, Generated, Recording

__all__ = ["Fired", "Generated", "Recording", "Request", "Routing", "Watched", "make_request", "observe", "probe", "prompts_of", "watch"]
