"""What the cost model and the planner are not told does not exist, costs nothing and changes
nothing: arguments and fields that are numbers are 0 or False by default, factors and degrees 1."""

import ast

from tests.architecture.sources import ROOT

# By name, or by class or function and name where others have another default.
DEFAULTS = {
    **dict.fromkeys(
        ["at.tp", "Degrees.tp", "Degrees.cp", "Degrees.dp", "Degrees.pp", "ep", "vpp"], 1
    ),
    **dict.fromkeys(
        ["dp_replicate", "shares", "left.share", "sharing", "stages_per_rank", "copies"], 1
    ),
    **dict.fromkeys(["num_microbatches", "local_steps", "TrainingRun.local_workers"], 1),
    **dict.fromkeys(["RunOption.local_workers", "solver_workers", "expert_ranks"], 1),
    # Factors.
    **dict.fromkeys(["InStep.level", "attention", "inner", "outer", "optimizer", "dispatch"], 1),
    **dict.fromkeys(["tensor_exposed", "gather_exposed", "reduce_exposed", "tensor_dispatch"], 1),
    **dict.fromkeys(
        ["_time.passes", "sign", "capacity", "stretch", "imbalance", "expert_imbalance"], 1
    ),
    **dict.fromkeys(["KeptTensor.count", "Attention.count", "Matmul.count", "expert_kernels"], 1),
    **dict.fromkeys(["even.forward_s", "backward_input_s", "backward_weight_s"], 1),
    "kept_for_weights": 1,
    # What is usual.
    **dict.fromkeys(
        ["keeps_gradients", "compared", "offered", "splits_vocabulary", "newest"], True
    ),
    **dict.fromkeys(
        ["causal", "latencies", "by_mfu", "defined", "exact", "complete", "rises", "closed"], True
    ),
    "relaxed": True,
    "bytes": 2.0,
    "weight_share": 0.5,
    "quantile": 1.645,
    "confidence": 0.5,
    "most_waiting": 0.01,
    "runs": 2000,
    "patience_s": 10.0,
    "effort": 10.0,
}


def defaults(node):
    """Names and default values of a class's fields, or of a function's arguments."""
    if isinstance(node, ast.ClassDef):
        return [
            (each.target.id, each.value) for each in node.body if isinstance(each, ast.AnnAssign)
        ]
    if not isinstance(node, ast.FunctionDef):
        return []
    given = node.args
    named = [*given.posonlyargs, *given.args]
    named = named[len(named) - len(given.defaults) :] + given.kwonlyargs
    values = [*given.defaults, *given.kw_defaults]
    return [(each.arg, value) for each, value in zip(named, values, strict=True)]


def test_numbers_that_are_not_given_are_neutral():
    wrong, used = [], set()
    for package in ("simulator", "planner"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                for name, value in defaults(node):
                    if not isinstance(getattr(value, "value", None), bool | int | float):
                        continue
                    key = f"{node.name}.{name}"
                    key = key if key in DEFAULTS else name
                    used.add(key)
                    if value.value != DEFAULTS.get(key, 0):
                        wrong.append(f"{path.stem}: {node.name}.{name} = {value.value}")
    assert wrong == []
    assert set(DEFAULTS) <= used
