# SPDX-License-Identifier: Apache-2.0
"""`veldt sweep`: options are searched with Optuna, each trial an ordinary run."""
