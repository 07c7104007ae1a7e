# SPDX-License-Identifier: Apache-2.0
"""The page's style sheet: one set of names, two sets of colours."""

from __future__ import annotations

STYLE = """
:root { --ground: #f4f6f5; --card: #ffffff; --line: #e1e6e3; --ink: #1c2622; --soft: #66726c;
  --accent: #2f9e6e; --accent-soft: #e3f3ec; --blue: #4c7fd1; --warm: #d98a3d; --bad: #c8473b;
  --channel: #f3f6fb; --channel-line: #c6d3ea; }
.body--dark { --ground: #111714; --card: #19211d; --line: #2b3631; --ink: #e5ece8; --soft: #93a19a;
  --accent: #45b883; --accent-soft: #1d3a2d; --blue: #7aa5ea; --warm: #e2a05e; --bad: #e2695d;
  --channel: #1d2633; --channel-line: #3a4c69; }
body { background: var(--ground); color: var(--ink); }
.nicegui-content { padding: 0; display: block; font-family: system-ui, sans-serif; }
.page { max-width: 1440px; margin: 0 auto; padding: 20px 24px 40px; }
.top { display: flex; align-items: center; gap: 14px; flex-wrap: wrap; margin-bottom: 16px; }
.title { font-size: 26px; font-weight: 650; letter-spacing: -.01em; line-height: 1.1; }
.env { font-size: 18px; color: var(--soft); }
.chip { font-size: 12.5px; padding: 3px 10px; border-radius: 999px; border: 1px solid var(--line);
  color: var(--soft); background: var(--card); white-space: nowrap; }
.state { font-weight: 600; color: var(--soft); }
.state.running { color: var(--accent); border-color: var(--accent);
  background: var(--accent-soft); }
.state.lost, .state.failure { color: var(--bad); border-color: var(--bad); }
.state.target { color: var(--card); background: var(--accent); border-color: var(--accent); }
.space { flex: 1; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 14px;
  padding: 14px 18px; }
.card h2 { font-size: 13px; font-weight: 600; color: var(--soft); margin: 0 0 6px;
  line-height: 1.4; letter-spacing: .01em; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin-bottom: 12px; }
.tile .value { font-size: 25px; font-weight: 620; font-variant-numeric: tabular-nums;
  line-height: 1.2; }
.tile .note { font-size: 12.5px; color: var(--soft); font-variant-numeric: tabular-nums;
  min-height: 18px; }
.meter { height: 4px; border-radius: 2px; background: var(--line); margin-top: 6px;
  overflow: hidden; }
.meter div { height: 100%; background: var(--accent); }
.result { border-left: 4px solid var(--accent); margin-bottom: 12px; }
.result.failure, .result.lost { border-left-color: var(--bad); }
.result .first { font-size: 16px; font-weight: 600; }
.result .more { color: var(--soft); font-size: 13.5px; overflow-wrap: anywhere; }
.drawing { margin-bottom: 12px; overflow-x: auto; text-align: center; }
.drawing h2 { text-align: left; }
.charts { display: grid; grid-template-columns: repeat(12, 1fr); gap: 12px; }
.wide { grid-column: span 8; } .narrow { grid-column: span 4; }
.chart { height: 250px; width: 100%; }
@media (max-width: 900px) { .wide, .narrow { grid-column: span 12; } }
.events { max-height: 250px; overflow-y: auto; font-size: 13px; }
.event { display: flex; gap: 10px; padding: 5px 0; border-bottom: 1px solid var(--line); }
.event time { color: var(--soft); font-variant-numeric: tabular-nums; }
.event .sort { font-weight: 600; min-width: 74px; color: var(--soft); }
.event.alarm .sort, .event.end .sort { color: var(--bad); }
.event.node .sort { color: var(--warm); }
.event .text { overflow-wrap: anywhere; white-space: pre-line; }
.calm { color: var(--soft); font-size: 13px; }
table.roles { width: 100%; border-collapse: collapse; font-size: 13px;
  font-variant-numeric: tabular-nums; }
table.roles td, table.roles th { padding: 4px 6px; border-bottom: 1px solid var(--line);
  text-align: right; font-weight: 400; }
table.roles th { color: var(--soft); } table.roles tr > :first-child { text-align: left; }
table.roles .bar { width: 38%; } table.roles .meter { margin: 0; height: 7px; border-radius: 4px; }
table.roles .restarted { color: var(--warm); font-weight: 650; }
svg.topology { width: 100%; height: auto; display: inline-block; }
.topology text { fill: var(--ink); font-family: system-ui, sans-serif; }
.topology .role { fill: var(--card); stroke: var(--accent); stroke-width: 1.6; }
.topology .name { font-size: 16px; font-weight: 620; }
.topology .small { font-size: 12px; fill: var(--soft); } .topology .middle { text-anchor: middle; }
.topology .track { fill: var(--line); } .topology .busy { fill: var(--accent); }
.topology .fill { fill: var(--blue); }
.topology .channel { fill: var(--channel); stroke: var(--channel-line); stroke-width: 1.2; }
.topology .channel-name { font-size: 13px; text-anchor: middle; font-weight: 560; }
.topology .link { fill: none; stroke: var(--accent); stroke-width: 1.8; }
.topology .link.idle { stroke: var(--soft); stroke-width: 1.1; opacity: .55; }
.topology .tip { fill: var(--accent); } .topology .tip-idle { fill: var(--soft); }
.topology .rate { font-size: 12.5px; font-weight: 600; text-anchor: middle; fill: var(--accent);
  paint-order: stroke; stroke: var(--card); stroke-width: 5px; stroke-linejoin: round;
  font-variant-numeric: tabular-nums; }
.topology .rate.idle { fill: var(--soft); font-weight: 400; }
.topology .badge { fill: var(--warm); }
.topology .badge-text { fill: #fff; font-size: 11px; font-weight: 650; text-anchor: middle; }
"""
