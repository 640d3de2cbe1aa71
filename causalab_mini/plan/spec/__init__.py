"""The document language as closed, strict, immutable models; the field docstrings are the user's reference.

What can be judged of one object alone is judged here; what needs two objects of a document (names that refer to each other) in
`plan.check`; what needs rows or a model in `plan.build`.
"""

from causalab_mini.plan.spec.decoding import Decode, as_decode
from causalab_mini.plan.spec.document import NULLABLE, Header, ModelSpec, Role, Spec
from causalab_mini.plan.spec.featurizers import FEATURIZER_MODELS, Chain, Featurizer
from causalab_mini.plan.spec.fits import Fit, Optimizer, Weights
from causalab_mini.plan.spec.interventions import MECHANISM_RULES, Intervention, ModelDef, OutputRef, Params, Read, Write
from causalab_mini.plan.spec.metrics import METRIC_MODELS, Metric, TokenForm
from causalab_mini.plan.spec.saves import Difference, Output, Save, Where
from causalab_mini.plan.spec.selected import DrawnControl, as_control
from causalab_mini.plan.spec.sites import Site
from causalab_mini.plan.spec.steps import STEP_MODELS, Attribute, FitProbe, Observe, Step, Stream

__all__ = [
    "FEATURIZER_MODELS",
    "MECHANISM_RULES",
    "METRIC_MODELS",
    "NULLABLE",
    "STEP_MODELS",
    "Attribute",
    "Chain",
    "Decode",
    "Difference",
    "DrawnControl",
    "Featurizer",
    "Fit",
    "FitProbe",
    "Header",
    "Intervention",
    "Metric",
    "ModelDef",
    "ModelSpec",
    "Observe",
    "Optimizer",
    "Output",
    "OutputRef",
    "Params",
    "Read",
    "Role",
    "Save",
    "Site",
    "Spec",
    "Step",
    "Stream",
    "TokenForm",
    "Weights",
    "Where",
    "Write",
    "as_control",
    "as_decode",
]
