"""Prints the tables of all benchmarks; exit status 1 where a ratio or an answer does not hold.

`python -m bench NAME ...` runs some of them. Every other module of this folder that has a `run()`
is a benchmark.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import bench


def main(asked: list[str]) -> int:
    """1 where any benchmark's figure does not hold, 2 for an unknown name."""
    names = sorted(found.name for found in pkgutil.iter_modules(bench.__path__))
    modules = {
        name: importlib.import_module(f"bench.{name}") for name in names if not name.startswith("_")
    }
    known = {name: module for name, module in modules.items() if hasattr(module, "run")}
    unknown = [name for name in asked if name not in known]
    if unknown:
        print(f"error: no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    failed = []
    for name in asked or list(known):
        if known[name].run():
            failed.append(name)
        print()
    print(f"does not hold: {', '.join(failed)}" if failed else "all figures hold")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
