# SPDX-License-Identifier: Apache-2.0
"""Turn the lag dial: IMPALA with and without V-trace while actors use ever older weights.

python examples/lag_dial.py [--env-steps 60000] [--seeds 3]
On the serial backend, so the same command prints the same numbers.
"""

from __future__ import annotations

import argparse
import statistics

import veldt


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 8, 32])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--env-steps", type=int, default=60_000)
    given = parser.parse_args()
    print("extra lag   correction   measured lag   score (median over seeds)")
    for extra_lag in given.lags:
        for correction in ("vtrace", "none"):
            runs = [
                veldt.train(
                    "impala",
                    env="CartPole-v1",
                    backend="serial",
                    seed=seed,
                    extra_lag=extra_lag,
                    correction=correction,
                    # The preset's rate is tuned for no lag at all.
                    learning_rate=1e-3,
                    total_env_steps=given.env_steps,
                )
                for seed in range(given.seeds)
            ]
            lag = statistics.mean(run.policy_lag["mean"] for run in runs)
            score = statistics.median(run.evaluation_return or 0.0 for run in runs)
            print(f"{extra_lag:9}   {correction:10}   {lag:12.1f}   {score:.1f}")


if __name__ == "__main__":
    main()
