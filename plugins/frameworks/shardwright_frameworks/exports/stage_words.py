"""`stage_words`: a configuration's options for stages and their order."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping

_FLAG = re.compile(r"--pipeline-model-parallel-layout[ =]+(\S+)")
_KEY = re.compile(r"^\s*pipeline_model_parallel_layout:\s*(\S+)", re.MULTILINE)
_TABLE = ("module_fqns_per_model_part", "pipeline_parallel_schedule")
STAGE_WORDS = ("megatron", "megatron-bridge", "torchtitan")
"""Targets that can express stages of unequal size."""


def stage_words(target: str, text: str) -> Mapping[str, str]:
    """The option's name and value; empty if the text does not set it.

    >>> stage_words("megatron", "  --pipeline-model-parallel-layout 'Et*3|t*5L'")
    {'pipeline_model_parallel_layout': 'Et*3|t*5L'}
    """
    if target == "torchtitan":
        try:
            table = tomllib.loads(text).get("parallelism", {})
        except tomllib.TOMLDecodeError:
            return _python_words(text)
        return {name: str(table[name]) for name in _TABLE if name in table}
    found = (_FLAG if target == "megatron" else _KEY).search(text)
    return {"pipeline_model_parallel_layout": found.group(1).strip("'\"")} if found else {}


def _python_words(text: str) -> Mapping[str, str]:
    """`stage_words` of a Python configuration, whose head is called `lm_head` (torchtitan 0.3)."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in _TABLE:
            try:
                value = ast.literal_eval(node.value)
            except (ValueError, TypeError, RecursionError):
                continue
            found[node.arg] = str(value).replace("'lm_head'", "'output'")
    return found
