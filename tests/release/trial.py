# SPDX-License-Identifier: Apache-2.0
"""What `make release-check` runs with the installed wheel, away from the source tree: short runs on
every backend that the core has, an evaluation, and a policy. Needs no extra."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import veldt
from veldt.architectures import ARCHITECTURES


def main() -> None:
    home = Path(veldt.__file__).parent
    assert "site-packages" in home.parts, f"{home} is not an installed package"
    assert metadata.version("veldt") == veldt.__version__
    program = str(Path(sys.executable).with_name("veldt"))
    with tempfile.TemporaryDirectory() as folder:

        def run(*words: str) -> str:
            command = [program, *words]
            return subprocess.run(
                command, cwd=folder, check=True, stdout=subprocess.PIPE
            ).stdout.decode()

        assert run("--version").strip() == f"veldt {veldt.__version__}"
        for name in ARCHITECTURES:
            run("describe", name)
        for backend in ("serial", "process"):
            short = ("--backend", backend, "--total-env-steps", "5000", "--run-dir", backend)
            run("train", "impala", "--env", "CartPole-v1", "--quiet", *short)
            print(run("evaluate", backend, "--episodes", "3").strip())
        policy = veldt.load(Path(folder) / "process")
        print("acts:", int(policy.act([0.0, 0.0, 0.0, 0.0])))
    print(f"veldt {veldt.__version__} works on Python {sys.version.split()[0]}, from {home}")


if __name__ == "__main__":
    main()
