# SPDX-License-Identifier: Apache-2.0
"""Env-only ceiling, trained steps/s and their ratio for each architecture and backend, in one run.

The ceiling is what one process reaches with the same environment adapter and random actions, as
wide as an actor of the process backend would be. On more cores several actors can exceed it.

--sizes ENVSxACTORS ... tries several sizes of each architecture and also reports the fastest:

python benchmarks/throughput.py --backends process --architectures impala sample_factory seed_rl \\
    --sizes 64x1 256x1 512x1 1024x1 512x2 --name throughput_sizes
"""

from __future__ import annotations

import argparse
import math
import time
from itertools import product
from typing import Any

import measuring
import numpy as np

from veldt.architectures import ON_ONE_PLAYER
from veldt.options import BACKENDS, RunOptions
from veldt.run.plan import make_plan

_START_SECONDS = {"serial": 4.0, "process": 4.0, "ray": 15.0}  # added to what is measured
_WIDTHS = (8, 16, 32, 64, 128, 256)


def ceiling(options: RunOptions, seconds: float) -> dict[str, float]:
    """Steps/s of the environments alone, at the width an actor would have and at the best one."""
    plan = make_plan("impala", options, {})
    chosen = plan.problem.envs_per_actor
    widths = sorted({chosen, *(width for width in _WIDTHS if width <= 2 * chosen)})
    share = seconds / len(widths)
    rates = {width: _env_rate(plan.problem.environment, width, share) for width in widths}
    best = max(rates, key=lambda width: rates[width])
    return {
        "envs": chosen,
        "steps_per_second": rates[chosen],
        "best_envs": best,
        "best_steps_per_second": rates[best],
    }


def _env_rate(factory: Any, width: int, seconds: float) -> float:
    environment = factory.make(width, seed=0)
    random = np.random.default_rng(0)
    actions = [random.permutation(environment.random_actions(random)) for _ in range(64)]
    environment.reset()
    for row in range(50):
        environment.step(actions[row % 64])
    steps, row, begun = 0, 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds:
        steps += environment.step(actions[row % 64]).env_steps
        row += 1
    environment.close()
    return steps / elapsed


def measure(
    architecture: str, backend: str, arguments: argparse.Namespace, most: float, size: str | None
) -> dict[str, Any]:
    """One entry of the table; a combination that does not run says why."""
    entry: dict[str, Any] = {"architecture": architecture, "backend": backend, "size": size}
    envs, _, actors = (size or "").partition("x")
    sizes = {"envs_per_actor": envs, "num_actors": actors} if size else {}
    seconds = arguments.seconds + _START_SECONDS[backend]
    try:
        training = measuring.train(
            architecture,
            seconds + 120,
            env=arguments.env,
            network=arguments.network,
            preset=arguments.preset,
            backend=backend,
            max_seconds=seconds,
            evaluation_episodes=0,
            **sizes,
        )
    except RuntimeError as error:
        return {**entry, "error": str(error)}
    result = training.result
    rate = result["env_steps_per_second"] or math.nan
    return {
        **entry,
        "env_steps_per_second": rate,
        "ratio_to_ceiling": rate / most,
        "trained_steps_per_second": training.trained_steps_per_second,
        "updates_per_second": training.updates_per_second,
        "start_seconds": result["start_seconds"],
        "policy_lag": {name: result["policy_lag"][name] for name in ("mean", "max")},
        "bottleneck": result["bottleneck"],
    }


def show(entry: dict[str, Any]) -> tuple[object, ...]:
    names = ("env_steps_per_second", "ratio_to_ceiling", "trained_steps_per_second")
    numbers = (entry.get(name, math.nan) for name in (*names, "updates_per_second"))
    return (f"{entry['architecture']} {entry['backend']} {entry['size'] or ''}", *numbers)


def fastest(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The size at which each architecture trains fastest, and its rate over impala's fastest."""
    best: dict[str, dict[str, Any]] = {}
    for entry in entries:
        rate, name = entry.get("trained_steps_per_second", 0.0), entry["architecture"]
        if name not in best or rate > best[name]["trained_steps_per_second"]:
            best[name] = {"size": entry["size"], "trained_steps_per_second": rate}
    for entry in best.values():
        if "impala" in best:
            impala = best["impala"]["trained_steps_per_second"]
            entry["of_impala"] = entry["trained_steps_per_second"] / impala
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--architectures", nargs="+", default=list(ON_ONE_PLAYER))
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--network", default="auto")
    parser.add_argument(
        "--preset", default="control", help="control: one pass over a batch; auto: as users train"
    )
    parser.add_argument("--sizes", nargs="+", default=[None], metavar="ENVSxACTORS")
    parser.add_argument("--name", help="of the result file")
    parser.add_argument("--seconds", type=float, default=8.0, help="per run, beside the start")
    arguments = parser.parse_args()
    machine = measuring.machine()
    options = RunOptions(env=arguments.env, network=arguments.network, max_seconds=1.0)
    alone = ceiling(options, arguments.seconds)
    most = max(alone["steps_per_second"], alone["best_steps_per_second"])
    print(f"{arguments.env} alone, one process, random actions (ratios are to the larger):")
    for envs, rate in ((alone["envs"], alone["steps_per_second"]), (alone["best_envs"], most)):
        print(f"  {envs:>3} envs: {rate:,.0f} steps/s")
    entries = []
    runs = product(arguments.sizes, arguments.architectures, arguments.backends)
    for size, architecture, backend in runs:
        entries.append(measure(architecture, backend, arguments, most, size))
        print(f"  {show(entries[-1])[0]}: {entries[-1].get('error', 'done')}", flush=True)
    default = "throughput" + ("" if arguments.env == "CartPole-v1" else f"_{_slug(arguments.env)}")
    name = arguments.name or default
    payload = {"machine": machine, "env": arguments.env, "ceiling": alone, "entries": entries}
    if arguments.sizes != [None]:
        payload["fastest"] = fastest(entries)
        print(payload["fastest"])
    path = measuring.save(name, payload)
    header = ("architecture backend", "env steps/s", "of ceiling", "trained steps/s", "updates/s")
    measuring.print_table(header, [show(entry) for entry in entries])
    print(f"with replay a step is trained on several times; {path.relative_to(measuring.ROOT)}")


def _slug(env: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in env).lower()


if __name__ == "__main__":
    main()
