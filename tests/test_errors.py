# SPDX-License-Identifier: Apache-2.0
"""Hints for those who misspell a name."""

from __future__ import annotations

from veldt.errors import did_you_mean, nearest


def test_an_unknown_name_is_met_with_the_nearest():
    known = ["impala", "apex", "apex_dpg"]
    assert did_you_mean(nearest("impla", known), "no") == "did you mean impala?"
    assert did_you_mean(nearest("apex_d", known, 2), "no") == "did you mean apex_dpg or apex?"
    assert did_you_mean(nearest("zzz", known), "there are three") == "there are three"
