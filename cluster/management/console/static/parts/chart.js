// Figures over time: uPlot in a frame that has the colours of the page, and small lines without axes.

import { html, useEffect, useRef } from "../vendor/preact-htm.js";
import uPlot from "../vendor/uplot.js";
import { SPAN_S } from "../node/rings.js";

const HEIGHT = 190;
/** Of the variables of the style sheet, in the order of the series. */
const COLOURS = ["--line-1", "--line-2", "--line-3"];

/** The least that the height of a frame stands for, and steps between its lines: of numbers, and of bytes. */
const LEAST = 5;
const STEPS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const POWERS = Array.from({ length: 45 }, (_, power) => 2 ** power);
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const EXACT = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

const dark = matchMedia("(prefers-color-scheme: dark)");

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Where nobody points at a moment, the figures below a frame are the newest. */
function showNewest(plot) {
  if (plot.cursor.idx === null || plot.cursor.idx === undefined || plot.cursor.left < 0) {
    plot.setLegend({ idx: plot.data[0].length - 1 }, false);
  }
}

function optionsOf(series, show, width) {
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--edge"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width,
    height: HEIGHT,
    legend: { live: true },
    hooks: { setData: [showNewest], setCursor: [showNewest], ready: [showNewest] },
    cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    scales: {
      x: { range: (_, __, newest) => [(newest ?? Date.now() / 1_000) - SPAN_S, newest ?? Date.now() / 1_000] },
      y: { range: (_, __, high) => [0, Math.max((high ?? 0) * 1.1, LEAST)] },
    },
    axes: [
      { ...axis, space: 70, size: 32, incrs: [60, 120, 300], values: (_, ticks) => ticks.map((tick) => CLOCK.format(tick * 1_000)) },
      { ...axis, size: 66, incrs: show(1).includes("B") ? POWERS : STEPS, values: (_, ticks) => ticks.map((tick) => show(tick)) },
    ],
    series: [
      { label: "Time", value: (_, time) => (time ? EXACT.format(time * 1_000) : "–") },
      ...series.map((label, place) => ({
        label,
        stroke: colour(COLOURS[place]),
        width: 1.75,
        fill: place === 0 && series.length === 1 ? `${colour(COLOURS[place])}22` : undefined,
        points: { show: false },
        value: (_, value) => (value === null || value === undefined ? "–" : show(value)),
      })),
    ],
  };
}

/** Lines over the last ten minutes: `data` is times in seconds and then a column for each of `series`. */
export function Chart({ label, series, data, show }) {
  const frame = useRef(null);
  const plot = useRef(null);
  const newest = useRef(data);
  newest.current = data;
  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      plot.current = new uPlot(optionsOf(series, show, frame.current.clientWidth), newest.current, frame.current);
    };
    make();
    const watching = new ResizeObserver(() => plot.current.setSize({ width: frame.current.clientWidth, height: HEIGHT }));
    watching.observe(frame.current);
    dark.addEventListener("change", make);
    return () => {
      watching.disconnect();
      dark.removeEventListener("change", make);
      plot.current.destroy();
    };
  }, [series.join()]);
  useEffect(() => plot.current.setData(data), [data]);
  const told = series.map((name, place) => `${name} ${show(data[place + 1].at(-1))}`).join(", ");
  return html`<div class="chart" ref=${frame} role="img" aria-label=${`${label} in the last ten minutes; now: ${told}`}></div>`;
}

/** A line without axes. */
export function Sparkline({ times, values, label = "" }) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return html`<svg class="spark" viewBox="0 0 100 24" aria-hidden="true"></svg>`;
  const newest = times.at(-1);
  const high = Math.max(...known, 1);
  const points = values
    .map((value, place) => (value === null ? "" : `${(100 - ((newest - times[place]) / SPAN_S) * 100).toFixed(1)},${(22 - (value / high) * 20).toFixed(1)}`))
    .filter(Boolean);
  return html`<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label=${label}>
    <polyline points=${points.join(" ")} vector-effect="non-scaling-stroke" />
  </svg>`;
}
