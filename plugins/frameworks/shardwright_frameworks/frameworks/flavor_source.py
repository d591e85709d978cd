"""The figures of a flavor in torchtitan's source tree: its own, or of another shape than the
published model of that name."""

from __future__ import annotations

import ast
import contextlib

from profiles.errors import DocumentError
from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.python_file import PythonFile, dotted, read_python
from shardwright_frameworks.shell.config_folder import ConfigFolder

_FIGURES = {
    "dim": "hidden_size", "n_layers": "num_layers", "n_heads": "num_heads",
    "n_kv_heads": "num_kv_heads", "vocab_size": "vocab_size", "head_dim": "head_dim",
    "hidden_dim": "ffn_size", "inter_dim": "ffn_size", "moe_inter_dim": "moe_ffn_size",
    "num_experts": "num_experts", "top_k": "top_k", "num_shared_experts": "num_shared_experts",
    "dense_hidden_dim": "ffn_size", "moe_hidden_dim": "moe_ffn_size", "router_top_k": "top_k",
    "n_dense_layers": "first_dense_layers", "intermediate_size": "ffn_size",
    "moe_intermediate_size": "moe_ffn_size", "num_experts_per_tok": "top_k",
}  # fmt: skip
_SHAPE = ("dim", "n_layers", "n_heads")
_FOLDERS = ("models", "experiments")
_MOST_CALLS = 4  # from the entry to the function with the numbers


def collect_flavor_of_tree(folder: ConfigFolder, collected: Collected) -> None:
    """Collect the figures of the flavor in torchtitan/models/NAME/__init__.py."""
    model, flavor = (collected.placed.get(f"model.{key}") for key in ("name", "flavor"))
    ends = [f"{each}/{model.value}/__init__.py" for each in _FOLDERS] if model is not None else []
    names = [(end, folder.find(f"torchtitan/{end}")) for end in ends]
    name = next((name for end, name in names if name and name.endswith(end)), None)
    if name is not None and flavor is not None:
        with contextlib.suppress(DocumentError):
            file = read_python(name, folder.text(name) or "")
            collect_flavor(file, str(flavor.value), collected)


def collect_flavor(file: PythonFile, name: str, collected: Collected) -> None:
    """Collect the figures of a flavor in a file with a table of them, unless they are those of the
    published model of that name."""
    model = collected.placed.get("model.name")
    flavor = collected.placed.get("model.flavor", model)
    found = _flavor(file, name)
    of = collected.placed.get("model.figures_of")
    shape = {key: collected.get(f"model.{_FIGURES[key]}") for key in _SHAPE}
    published = of is not None and all(found.get(key, of) == of for key, of in shape.items())
    if model is None or flavor is None or not found.get("n_layers") or published:
        return
    for key, each in list(collected.placed.items()):
        same = of is not None and (each.place, each.option) == (of.place, of.option)
        if same and key.startswith("model.") and key not in ("model.name", "model.flavor"):
            del collected.placed[key]
    for key, figure in _FIGURES.items():
        if isinstance(value := found.get(key), int) and value > 0:
            collected.set_first(f"model.{figure}", value, flavor.place, flavor.option)
    if model.value == "llama3":
        # models/llama3/model/model.py, FeedForward
        multiple, factor = found.get("multiple_of") or 256, found.get("ffn_dim_multiplier") or 1
        width = int(factor * int(2 * 4 * (found.get("dim") or 0) / 3))
        padded = int(multiple * -(-width // multiple)) or None
        collected.set_first("model.ffn_size", padded, flavor.place, flavor.option)
    elif "num_experts" not in found and model.value == "llama4":
        why = f"the entry in {file.name} leaves the experts to the program"
        collected.leave_open("model.num_experts", flavor.option, why, flavor.place)
    collected.set("model.figures_of", file.name, flavor.place, flavor.option)
    collected.files.append(file.name)


def _flavor(file: PythonFile, flavor: str) -> dict[str, int | float]:
    """The numbers in a flavor's entry in a table of flavors; if it is a function, those of its
    calls, or of the function that it calls."""
    tables = [node for each in file.body for node in ast.walk(each) if isinstance(node, ast.Dict)]
    pairs = (pair for each in tables for pair in zip(each.keys, each.values, strict=True))
    entries = (v for k, v in pairs if isinstance(k, ast.Constant) and k.value == flavor)
    found: dict[str, int | float] = {}
    for within in entries:
        called: list[ast.AST] = [within]
        for _ in range(_MOST_CALLS):
            if found.get("n_layers") or not called:
                break
            found = _numbers(called[0])
            names = [each.id for each in ast.walk(called[0]) if isinstance(each, ast.Name)]
            called = [file.functions[name] for name in names if name in file.functions]
    return found


def _numbers(within: ast.AST) -> dict[str, int | float]:
    """The numbers that keywords of calls have, also by the name of a variable; those of outer calls
    come before those of inner ones."""
    nodes = list(ast.walk(within))
    calls = (each for each in nodes if isinstance(each, ast.Call))
    given = [(each.arg, each.value) for call in calls for each in call.keywords if each.arg]
    assigned = (each for each in nodes if isinstance(each, ast.Assign))
    named = {dotted(each.targets[0]): _number(each.value) for each in assigned}
    found: dict[str, int | float] = {}
    for key, value in given:
        number = named.get(value.id) if isinstance(value, ast.Name) else _number(value)
        if number is not None:
            found.setdefault(str(key), number)
    return found


def _number(node: ast.expr) -> int | float | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        left, right = _number(node.left), _number(node.right)
        return left / right if left and right else None
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
