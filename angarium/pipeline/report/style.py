"""How the page of a report looks, in light and in dark: its style sheet."""

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --page: #f4f6f9;
  --card: #ffffff;
  --ink: #18202b;
  --soft: #5d6b7c;
  --line: #dfe5ec;
  --bar: #d6e4fb;
  --accent: #2f6fde;
  --good: #1b7f5c;
  --bad: #c0392b;
  --grid: #e6ebf1;
}
@media (prefers-color-scheme: dark) {
  :root:not([data-theme="light"]) {
    --page: #10151c;
    --card: #182029;
    --ink: #e4eaf1;
    --soft: #93a1b2;
    --line: #2a3542;
    --bar: #24405f;
    --accent: #7aa8ff;
    --good: #5fd0a5;
    --bad: #ff8b7b;
    --grid: #26303c;
  }
}
:root[data-theme="dark"] {
  --page: #10151c;
  --card: #182029;
  --ink: #e4eaf1;
  --soft: #93a1b2;
  --line: #2a3542;
  --bar: #24405f;
  --accent: #7aa8ff;
  --good: #5fd0a5;
  --bad: #ff8b7b;
  --grid: #26303c;
}
:root[data-theme="light"] {
  color-scheme: light;
}
:root[data-theme="dark"] {
  color-scheme: dark;
}
* {
  box-sizing: border-box;
}
body {
  margin: 0;
  background: var(--page);
  color: var(--ink);
  line-height: 1.45;
  font:
    15px/1.45 system-ui,
    -apple-system,
    "Segoe UI",
    Roboto,
    "Helvetica Neue",
    "DejaVu Sans",
    sans-serif;
}
main {
  max-width: 1320px;
  margin: 0 auto;
  padding: 24px 20px 48px;
}
header {
  display: flex;
  gap: 16px;
  align-items: flex-start;
  justify-content: space-between;
  margin-bottom: 18px;
}
h1 {
  font-size: 24px;
  margin: 0 0 4px;
  overflow-wrap: anywhere;
}
h2 {
  font-size: 16px;
  margin: 0;
}
p {
  margin: 4px 0;
}
.soft {
  color: var(--soft);
  font-size: 13px;
  overflow-wrap: anywhere;
}
button {
  font: inherit;
  font-size: 13px;
  color: var(--ink);
  background: var(--card);
  border: 1px solid var(--line);
  border-radius: 7px;
  padding: 4px 11px;
  cursor: pointer;
  white-space: nowrap;
}
button[aria-pressed="true"] {
  background: var(--bar);
  border-color: var(--accent);
}
button:focus-visible,
th button:focus-visible {
  outline: 2px solid var(--accent);
  outline-offset: 1px;
}
.tiles {
  display: grid;
  grid-template-columns: repeat(auto-fill, minmax(150px, 1fr));
  gap: 12px;
  margin-bottom: 16px;
}
.tile,
section {
  background: var(--card);
  border: 1px solid var(--line);
  border-radius: 12px;
}
.tile {
  padding: 12px 14px;
}
.tile b {
  display: block;
  font-size: 22px;
  font-weight: 650;
  font-variant-numeric: tabular-nums;
}
.tile span {
  color: var(--soft);
  font-size: 12.5px;
}
.tile.bad b {
  color: var(--bad);
}
.tile.good b {
  color: var(--good);
}
section {
  padding: 16px 18px;
  margin-bottom: 16px;
  min-width: 0;
}
.pair {
  display: grid;
  grid-template-columns: repeat(auto-fit, minmax(min(460px, 100%), 1fr));
  gap: 16px;
}
.pair section {
  margin-bottom: 0;
}
.pair {
  margin-bottom: 16px;
}
.head {
  display: flex;
  flex-wrap: wrap;
  gap: 8px 14px;
  align-items: center;
  justify-content: space-between;
}
.choice {
  display: flex;
  gap: 6px;
  flex-wrap: wrap;
}
.chart {
  width: 100%;
  height: 330px;
  margin-top: 6px;
}
.scroll {
  overflow-x: auto;
  margin-top: 10px;
}
table {
  border-collapse: collapse;
  width: 100%;
  font-size: 13px;
  font-variant-numeric: tabular-nums;
}
th,
td {
  padding: 5px 10px;
  text-align: right;
  white-space: nowrap;
  border-bottom: 1px solid var(--line);
}
th {
  color: var(--soft);
  font-weight: 600;
  vertical-align: bottom;
}
th button {
  border: 0;
  background: none;
  padding: 0;
  color: inherit;
  font-weight: inherit;
}
th:first-child,
td:first-child,
.text {
  text-align: left;
}
td.text,
td:first-child {
  white-space: normal;
  overflow-wrap: anywhere;
  min-width: 110px;
  max-width: 460px;
}
td:first-child {
  min-width: 150px;
  position: sticky;
  left: 0;
  background: var(--card);
}
td.share {
  background-repeat: no-repeat;
  background-image: linear-gradient(var(--bar), var(--bar));
  background-position: right;
}
tr.rest td {
  color: var(--soft);
  font-style: italic;
}
.bad-text {
  color: var(--bad);
  font-weight: 600;
}
dl {
  display: grid;
  grid-template-columns: max-content 1fr;
  gap: 4px 16px;
  font-size: 13px;
  margin: 10px 0 0;
}
dt {
  font-weight: 600;
}
dd {
  margin: 0;
  color: var(--soft);
}
@media (max-width: 640px) {
  dl {
    grid-template-columns: 1fr;
  }
  header {
    flex-direction: column;
  }
}
@media print {
  button {
    display: none;
  }
  section,
  .tile {
    break-inside: avoid;
  }
}
"""
