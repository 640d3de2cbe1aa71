"""Imports go one way, and nothing before `ops` and `engine` loads torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.plain

PACKAGE = Path(__file__).resolve().parent.parent / "causalab_mini"
ALLOWED = {
    "errors": set(),
    "data": {"errors"},
    "model": {"errors", "data"},
    "ops": set(),
    "plan": {"errors", "data", "model", "probing"},
    "schedule": {"errors", "data", "model", "plan"},
    "probing": {"errors", "data", "model", "plan", "ops"},
    "probing/run": {"errors", "data", "model", "plan", "schedule", "evidence", "ops", "probing", "results", "engine"},
    "probing/serve": {"errors", "data", "model", "plan", "probing", "probing/run", "engine"},
    "evidence": {"errors", "data", "model", "plan", "schedule", "ops"},
    "results": {"errors", "data", "model", "plan", "probing", "schedule", "evidence", "ops"},
    "engine": {"errors", "data", "model", "plan", "schedule", "evidence", "ops"},
}
"""What a layer may import beside itself. `model` also knows the plan's model section, by type alone.

A `stream` step is an extraction spec inside a document: the plan and `probing` are two halves of one language."""
CARRIED_OUT = ("engine/point.py", "causalab_mini.probing.run.steps.run_step")
"""The one name of `probing.run` that the engine has, looked up when a `stream` step is run."""
OF_FILES = {
    ("ops/linear_probe.py", "causalab_mini.data.probe_files.read_probe_file"),
    ("ops/linear_probe.py", "causalab_mini.data.probe_files.refuse"),
}
"""A probe is taken out of a file by one call: `LinearProbe.from_file` looks up what judges the file's header, and what refuses it."""
EXCEPTIONS = {CARRIED_OUT, *OF_FILES}
ON_TOP = {"experiment", "stopping", "shipped", "doctor", "cli", "__init__", "__main__"}
HEAVY = {"torch", "transformers", "nnterp", "nnsight", "safetensors", "huggingface_hub", "sklearn"}
WITH_TORCH = {"ops", "engine", "probing/run", "results/tensors.py"}
OPS_MAY = {"torch", "numpy", "safetensors", "sklearn", "causalab_mini", *sys.stdlib_module_names}

MODULES = sorted(PACKAGE.rglob("*.py"))


def layer_of(file):
    parts = file.relative_to(PACKAGE).parts
    return "/".join(parts[:2]) if "/".join(parts[:2]) in ALLOWED else parts[0].removesuffix(".py")


def imports(tree, *, is_lazy=False):
    """Yields every imported module with whether it is imported inside a function; what stands under TYPE_CHECKING is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for inner in node.orelse:
                yield from imports(ast.Module([inner], []), is_lazy=is_lazy)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, is_lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield from ((f"{node.module}.{alias.name}", is_lazy) for alias in node.names)
        else:
            inside = is_lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, is_lazy=inside)


def all_imports(file):
    return list(imports(ast.parse(file.read_text(encoding="utf-8"))))


def test_every_module_has_a_layer():
    assert {layer_of(file) for file in MODULES} == {*ALLOWED, *ON_TOP}


@pytest.mark.parametrize("layer", ALLOWED)
def test_a_layer_imports_only_what_is_below_it(layer):
    for file in (file for file in MODULES if layer_of(file) == layer):
        for name, _ in all_imports(file):
            parts = name.split(".")
            if parts[0] == "causalab_mini" and (file.relative_to(PACKAGE).as_posix(), name) not in EXCEPTIONS:
                assert "/".join(parts[1:3]) not in ALLOWED or "/".join(parts[1:3]) in {layer, *ALLOWED[layer]}, (
                    f"{file.relative_to(PACKAGE)} imports {name}"
                )
                assert parts[1] in {layer, "__version__", *ALLOWED[layer]}, f"{file.relative_to(PACKAGE)} imports {name}"


def test_ops_see_tensors_only():
    for file in (file for file in MODULES if layer_of(file) == "ops"):
        for name, _ in all_imports(file):
            assert name.split(".")[0] in OPS_MAY, f"{file.relative_to(PACKAGE)} imports {name}"


def test_nothing_before_ops_and_engine_imports_torch_at_module_level():
    for file in (file for file in MODULES if not {layer_of(file), file.relative_to(PACKAGE).as_posix()} & WITH_TORCH):
        for name, is_lazy in all_imports(file):
            assert is_lazy or name.split(".")[0] not in HEAVY, f"{file.relative_to(PACKAGE)} imports {name}"


def test_only_the_server_knows_what_it_is_served_with():
    web = {"fastapi", "starlette", "uvicorn", "prometheus_client"}
    for file in (file for file in MODULES if layer_of(file) != "probing/serve"):
        assert not web & {name.split(".")[0] for name, _ in all_imports(file)}, file.relative_to(PACKAGE)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch", [("torch", False)]),
        ("from a.b import c, d as e", [("a.b.c", False), ("a.b.d", False)]),
        ("def f():\n    try:\n        import torch\n    except ImportError:\n        pass", [("torch", True)]),
        ("class A:\n    def f(self):\n        from torch import nn", [("torch.nn", True)]),
        ("class A:\n    import torch", [("torch", False)]),
        ("if TYPE_CHECKING:\n    import torch\nelse:\n    import numpy", [("numpy", False)]),
        ("try:\n    import torch\nexcept ImportError:\n    pass", [("torch", False)]),
    ],
)
def test_imports_are_found_wherever_they_stand(source, found):
    assert list(imports(ast.parse(source))) == found


def test_the_command_line_and_the_compiler_load_no_torch():
    code = (
        "import sys, causalab_mini.cli.app, causalab_mini.plan, causalab_mini.schedule, causalab_mini.probing.spec\n"
        "assert not {'torch', 'transformers', 'numpy', 'nnterp', 'nnsight'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_scikit_learn_is_looked_up_when_a_probe_is_fitted_and_nowhere_before():
    for file in MODULES:
        for name, is_lazy in all_imports(file):
            assert is_lazy or name.split(".")[0] != "sklearn", f"{file.relative_to(PACKAGE)} imports {name}"
