"""The figures of a flavor in torchtitan's source tree: its own, or of another shape than the
published model of that name."""

from __future__ import annotations

import ast

from profiles.errors import DocumentError
from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.python_file import read_python
from shardwright_frameworks.shell.config_folder import ConfigFolder

_FIGURES = {
    "dim": "hidden_size", "n_layers": "num_layers", "n_heads": "num_heads",
    "n_kv_heads": "num_kv_heads", "vocab_size": "vocab_size", "head_dim": "head_dim",
    "hidden_dim": "ffn_size", "inter_dim": "ffn_size", "moe_inter_dim": "moe_ffn_size",
    "num_experts": "num_experts", "top_k": "top_k", "num_shared_experts": "num_shared_experts",
}  # fmt: skip
_SHAPE = ("dim", "n_layers", "n_heads")
_FOLDERS = ("models", "experiments")


def collect_flavor_of_tree(folder: ConfigFolder, collected: Collected) -> None:
    """Collect the figures of the flavor in torchtitan/models/NAME/__init__.py, unless they are
    those of the published model of that name."""
    model, flavor = (collected.placed.get(f"model.{key}") for key in ("name", "flavor"))
    ends = [f"{each}/{model.value}/__init__.py" for each in _FOLDERS] if model is not None else []
    names = [(end, folder.find(f"torchtitan/{end}")) for end in ends]
    name = next((name for end, name in names if name and name.endswith(end)), None)
    if model is None or flavor is None or name is None:
        return
    found = _flavor(folder, name, str(flavor.value))
    if not found.get("n_layers") or (
        "model.figures_of" in collected.placed
        and all(collected.get(f"model.{_FIGURES[key]}") == found.get(key) for key in _SHAPE)
    ):
        return
    of = collected.placed.get("model.figures_of")
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
    elif "num_experts" not in found and model.value != "qwen3":
        why = f"the entry in {name} leaves the experts to the program"
        collected.leave_open("model.num_experts", flavor.option, why, flavor.place)
    collected.set("model.figures_of", name, flavor.place, flavor.option)
    collected.files.append(name)


def _flavor(folder: ConfigFolder, name: str, flavor: str) -> dict[str, int | float]:
    """The numbers in a flavor's entry in a table of flavors."""
    try:
        body = read_python(name, folder.text(name) or "").body
    except DocumentError:
        return {}
    tables = [node for each in body for node in ast.walk(each) if isinstance(node, ast.Dict)]
    for key, value in (
        (k, v) for each in tables for k, v in zip(each.keys, each.values, strict=True)
    ):
        if isinstance(key, ast.Constant) and key.value == flavor and isinstance(value, ast.Call):
            calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
            given = [each for call in calls for each in call.keywords if each.arg]
            numbers = ((str(each.arg), _number(each.value)) for each in given)
            return {key: number for key, number in numbers if number is not None}
    return {}


def _number(node: ast.expr) -> int | float | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        left, right = _number(node.left), _number(node.right)
        return left / right if left and right else None
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
