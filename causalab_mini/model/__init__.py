"""What a checkpoint is and where things are in it: component names, the address book of families, facts from a config.

Imports no torch: an address is a module path, and whoever has the modules follows it.
"""

from causalab_mini.model.components import COMPONENTS, Component
from causalab_mini.model.facts import ModelFacts
from causalab_mini.model.families import FAMILIES, Absent, Address, Family

__all__ = ["COMPONENTS", "FAMILIES", "Absent", "Address", "Component", "Family", "ModelFacts"]
