"""Makes the environments in which the frameworks' own code reads what is exported:

    python plugins/frameworks/tests/frameworks/environments.py .venv-frameworks

Each sees the packages of the interpreter that runs this (torch for CPUs, transformers, Ray) and has
its framework on top. Versions are those of
shardwright_frameworks/exports/tested_versions.py.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

# Packages whose own requirements are left out: they ask for a newer Python or for GPU libraries.
ALONE = {
    "megatron": ("megatron-core==0.19.2",),
    "bridge": ("megatron-bridge==0.6.2",),
    "maxtext": ("maxtext==0.2.5",),
}
PACKAGES = {
    "megatron": ("triton==3.9.0", "packaging"),
    "torchtitan": ("torchtitan==0.2.2", "triton==3.9.0"),
    "torchtitan3": ("torchtitan==0.3.0", "triton==3.9.0", "torchao"),
    "huggingface": ("accelerate==1.15.0", "deepspeed==0.19.8"),
    "bridge": ("omegaconf", "hydra-core", "triton==3.9.0"),
    "maxtext": ("jax", "flax", "omegaconf", "pydantic", "pathwaysutils"),
    "launchers": (
        "skypilot==0.14.1",
        "kubernetes==37.0.2",
        "kubeflow-training==1.9.4",
        "kubeflow-trainer-api==2.3.0",
    ),
}
SEES = {"bridge": ("megatron", "huggingface")}
_TORCHRUN = '#!/usr/bin/env bash\nexec "$(dirname "$0")/python" -m torch.distributed.run "$@"\n'


def site_packages(folder: Path) -> Path:
    """Where an environment keeps its packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "lib" / version / "site-packages"


def make(root: Path, name: str) -> None:
    """One environment; nothing is done where it is complete."""
    folder = root / name
    done = folder / ".ready"
    wanted = "\n".join((*ALONE.get(name, ()), *PACKAGES[name]))
    if done.is_file() and done.read_text() == wanted:
        return
    print(f"{folder}: {', '.join((*ALONE.get(name, ()), *PACKAGES[name]))}", flush=True)
    venv.create(folder, with_pip=True)
    seen = [
        sysconfig.get_path("purelib"),
        *(site_packages(root / each) for each in SEES.get(name, ())),
    ]
    (site_packages(folder) / "zz_seen.pth").write_text("\n".join(map(str, seen)) + "\n")
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if name in ALONE:
        subprocess.run([*pip, "--no-deps", "--ignore-requires-python", *ALONE[name]], check=True)
    subprocess.run([*pip, *PACKAGES[name]], check=True)
    torchrun = folder / "bin" / "torchrun"
    torchrun.write_text(_TORCHRUN)
    torchrun.chmod(0o755)
    done.write_text(wanted)


if __name__ == "__main__":
    where = Path(sys.argv[1]).resolve()
    for environment in PACKAGES:
        make(where, environment)
