# SPDX-License-Identifier: Apache-2.0
"""Hints for those who misspell a name."""

from __future__ import annotations

from veldt.errors import did_you_mean, nearest


def test_an_unknown_name_is_met_with_the_nearest():
    known = ["impala", "apex", "apex_dpg"]
    assert did_you_mean("impla", known) == "did you mean impala?"
    assert nearest("apex_d", known, 2) == ["apex_dpg", "apex"]
    assert did_you_mean("zzz", known, "there are three") == "there are three"
    assert did_you_mean("zzz", known).startswith("there are ")
