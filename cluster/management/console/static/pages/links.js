// The mesh: its nodes and links as a graph, its issues, and the links of this node with what waits for them.

import { html } from "../vendor/preact-htm.js";
import { recent, run } from "../node/api.js";
import { usePolling } from "../node/polling.js";
import { Badge, Head, Panel } from "../parts/controls.js";
import { count, size, span } from "../parts/format.js";
import { Loading, Refusal } from "../parts/notices.js";
import { Table } from "../parts/table.js";

const WIDTH = 640;
const HEIGHT = 380;
const RADIUS = 29;
/** More nodes than this are told in the table alone. */
const NODES_MAX = 40;
const MOODS = { up: "good", this: "good", connecting: "warn", disabled: "quiet", stale: "warn" };

const moodOf = (state) => MOODS[state] ?? "bad";

async function ask(signal) {
  const [cluster, links] = await Promise.all([recent(["cluster"], { signal }), run("links.list", {}, { signal })]);
  return { cluster, links };
}

export function Links() {
  const { value, problem } = usePolling("links", ask);
  if (!value) return problem ? html`<${Refusal} problem=${problem} />` : html`<${Loading} />`;
  const { cluster, links } = value;
  return html`
    <${Head} title="Links" note=${`Cluster ${cluster.cluster}, seen from ${cluster.node}`} />
    <${Refusal} problem=${problem} />
    ${cluster.issues.length > 0 && html`<div class="alarms" aria-live="polite">${cluster.issues.map((one) => html`<p key=${one.text} class="warn"><${Badge} mood="warn">${one.kind}<//> ${one.text}${one.advice && ` – ${one.advice}`}</p>`)}</div>`}
    <${Panel} id="mesh" title="The mesh">${cluster.nodes.length > NODES_MAX ? html`<p class="quiet">${count(cluster.nodes.length)} nodes: see the table.</p>` : html`<${Graph} cluster=${cluster} />`}<//>
    <${Panel} id="own" title=${`Links of ${cluster.node}`}><${Own} links=${links} /><//>
    <${Panel} id="nodes" title="Nodes"><${Nodes} nodes=${cluster.nodes} /><//>`;
}

/** Give the links between two nodes each, with the worse state of both ends. */
export function edgesOf(cluster) {
  const edges = new Map();
  for (const end of cluster.links) {
    const pair = [end.node, end.neighbour].sort();
    const edge = edges.get(JSON.stringify(pair)) ?? { pair, states: [] };
    edge.states.push(end.stale ? "stale" : end.state);
    edges.set(JSON.stringify(pair), edge);
  }
  const worst = (states) => states.find((state) => moodOf(state) === "bad") ?? states.find((state) => moodOf(state) !== "good") ?? states[0];
  return [...edges.values()].map(({ pair, states }) => ({ pair, state: worst(states) }));
}

/** Places of nodes: this one and its neighbours in a circle. */
function placesOf(nodes) {
  if (nodes.length === 1) return new Map([[nodes[0], [WIDTH / 2, HEIGHT / 2]]]);
  return new Map(nodes.map((node, place) => {
    const angle = (place / nodes.length) * 2 * Math.PI - Math.PI / 2;
    return [node, [WIDTH / 2 + (WIDTH / 2 - 110) * Math.cos(angle), HEIGHT / 2 + (HEIGHT / 2 - 52) * Math.sin(angle)]];
  }));
}

function Graph({ cluster }) {
  const edges = edgesOf(cluster);
  const states = new Map(cluster.nodes.map((one) => [one.node, one.state]));
  const names = [...new Set([cluster.node, ...states.keys(), ...edges.flatMap((edge) => edge.pair)])];
  const places = placesOf(names);
  const told = edges.map((edge) => `${edge.pair.join(" and ")}: ${edge.state}`).join("; ") || "no links";
  return html`<svg class="graph" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${`${names.length} nodes; ${told}`}>
    ${edges.map((edge) => {
      const [[x1, y1], [x2, y2]] = edge.pair.map((name) => places.get(name));
      return html`<g key=${edge.pair.join("\n")} class=${moodOf(edge.state)}>
        <line ...${{ x1, y1, x2, y2 }} /><text x=${(x1 + x2) / 2} y=${(y1 + y2) / 2 - 6}>${edge.state}</text></g>`;
    })}
    ${names.map((name) => {
      const [x, y] = places.get(name);
      const state = states.get(name) ?? "unknown";
      return html`<g key=${name} class=${`${moodOf(state)}${name === cluster.node ? " own" : ""}`}>
        <circle cx=${x} cy=${y} r=${RADIUS} /><text class="name" x=${x} y=${y + RADIUS + 16}>${name}</text><text x=${x} y=${y + 4}>${state}</text></g>`;
    })}
  </svg>`;
}

function Own({ links }) {
  const columns = [
    { name: "name", title: "To", main: true, show: (row) => row.name },
    { name: "state", title: "State", show: (row) => html`<${Badge} mood=${moodOf(row.state)}>${row.state}<//>${row.error && html` <span class="quiet">${row.error}</span>`}` },
    { name: "uptime", title: "For", number: true, show: (row) => span(row.uptime_s) },
    { name: "lag", title: "Lag", number: true, show: (row) => (row.lag_ms === null ? "–" : `${count(row.lag_ms)} ms`) },
    { name: "progress", title: "In force", number: true, minor: true, show: (row) => `${count(row.progress_percent)} %` },
    { name: "in", title: "Messages in", number: true, show: (row) => count(row.messages_in) },
    { name: "out", title: "Out", number: true, show: (row) => count(row.messages_out) },
    { name: "queued", title: "Waiting", number: true, show: (row) => count(row.queued_messages) },
    { name: "spooled", title: "Spooled", number: true, show: (row) => `${count(row.spooled_messages)} (${size(row.spooled_bytes)})` },
    { name: "dead", title: "Dead", number: true, show: (row) => count(row.dead_messages) },
  ];
  return html`<${Table} caption="Links of this node" columns=${columns} rows=${links} keyOf=${(row) => row.name} empty="This node has no links: angarium link create, or angarium cluster join." />`;
}

function Nodes({ nodes }) {
  const columns = [
    { name: "node", title: "Node", main: true, show: (row) => row.node },
    { name: "state", title: "State", show: (row) => html`<${Badge} mood=${moodOf(row.state)}>${row.state}<//>${row.error && html` <span class="quiet">${row.error}</span>`}` },
    { name: "release", title: "Version", show: (row) => row.release ?? "–" },
    { name: "uptime", title: "Up for", number: true, show: (row) => span(row.uptime_s) },
    { name: "heard", title: "Heard", number: true, show: (row) => (row.heard_s === null ? "–" : `${span(row.heard_s)} ago`) },
    { name: "links", title: "Links up", number: true, show: (row) => (row.links === undefined ? "–" : `${count(row.links_up)} of ${count(row.links)}`) },
  ];
  return html`<${Table} caption="Nodes" columns=${columns} rows=${nodes} keyOf=${(row) => row.node} />`;
}
