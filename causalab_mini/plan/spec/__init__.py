"""The document language as closed, strict, immutable models; the field docstrings are the user's reference.

What can be judged of one object alone is judged here; what needs two objects of a document (names that refer to each other) in
`plan.check`; what needs rows or a model in `plan.build`.
"""

from causalab_mini.plan.spec.document import NULLABLE, Header, ModelSpec, Role, Spec
from causalab_mini.plan.spec.interventions import MECHANISM_RULES, Intervention, ModelDef, OutputRef, Params, Read, Write
from causalab_mini.plan.spec.metrics import METRIC_MODELS, Metric, TokenForm
from causalab_mini.plan.spec.sites import Site
from causalab_mini.plan.spec.steps import STEP_MODELS, Difference, Observe, Output, Save, Step, Where

__all__ = [
    "MECHANISM_RULES",
    "METRIC_MODELS",
    "NULLABLE",
    "STEP_MODELS",
    "Difference",
    "Header",
    "Intervention",
    "Metric",
    "ModelDef",
    "ModelSpec",
    "Observe",
    "Output",
    "OutputRef",
    "Params",
    "Read",
    "Role",
    "Save",
    "Site",
    "Spec",
    "Step",
    "TokenForm",
    "Where",
    "Write",
]
