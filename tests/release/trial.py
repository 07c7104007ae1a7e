# SPDX-License-Identifier: Apache-2.0
"""What `make release-check` runs with the installed wheel, away from the source tree: short runs on
every backend that the core has, an evaluation, and a policy. Needs no extra."""

import io
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from importlib import metadata
from pathlib import Path

import veldt
from veldt.architectures import ARCHITECTURES
from veldt.cli.main import main as program


def main() -> None:
    home = Path(veldt.__file__).parent
    assert home.is_relative_to(sys.prefix), f"{home} is not what this environment has installed"
    assert metadata.version("veldt") == veldt.__version__
    with redirect_stdout(io.StringIO()):
        assert all(program(["describe", name]) == 0 for name in ARCHITECTURES)
    with tempfile.TemporaryDirectory() as folder:
        for backend in ("serial", "process"):
            short = f"--backend {backend} --total-env-steps 3000 --run-dir {backend} --quiet"
            _run(folder, f"train impala --env CartPole-v1 {short}")
        print(_run(folder, "evaluate process --episodes 3"))
        print(_run(folder, "evaluate zoo:cart_pole --episodes 3"))
        policy = veldt.load(Path(folder) / "process")
        print("acts:", int(policy.act([0.0, 0.0, 0.0, 0.0])))
    print(f"veldt {veldt.__version__} works on Python {sys.version.split()[0]}, from {home}")


def _run(folder: str, words: str) -> str:
    """The installed program, as a user starts it."""
    command = [str(Path(sys.executable).with_name("veldt")), *words.split()]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
