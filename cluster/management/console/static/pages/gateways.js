// Gateways, webhooks and bridges: what connects this node with other protocols and other Message VPNs, and how it does.

import { html, useState } from "../vendor/preact-htm.js";
import { at, get, send } from "../node/api.js";
import { usePolling } from "../node/polling.js";
import { may } from "../node/rights.js";
import { Badge, Button, Facts, Head, Panel } from "../parts/controls.js";
import { Dialog } from "../parts/dialog.js";
import { count, size, span, text, words } from "../parts/format.js";
import { List } from "../parts/list.js";
import { Loading, Nothing, Refusal, notify } from "../parts/notices.js";
import { Link } from "../parts/route.js";

/** What the table shows already. */
const SHOWN = new Set(["name", "role", "index", "pid", "state", "restarts", "listen", "rss_bytes", "cpu_percent", "uptime_s", "incarnation", "progress", "clients", "messages_in", "messages_out"]);

export function Gateways() {
  const { value, problem } = usePolling("gateways", (signal) => get(["gateways"], {}, { signal }));
  if (!value) return problem ? html`<${Refusal} problem=${problem} />` : html`<${Loading} />`;
  return html`
    <${Head} title="Gateways" note="Processes for clients of MQTT and HTTP" />
    <${Refusal} problem=${problem} />
    ${!value.length && html`<${Nothing}>This node has none. <code>angarium up --mqtt tcp://127.0.0.1:1883</code> and <code>--http http://127.0.0.1:8080</code> add them.<//>`}
    ${value.map((one) => html`<${Panel} key=${one.name} id=${one.name} title=${one.name} actions=${html`<${Badge} mood=${one.state === "ready" ? "good" : "bad"}>${one.state}<//>`}>
      <${Facts} rows=${factsOf(one)} /><details><summary>All figures</summary><${Facts} rows=${restOf(one)} /></details><//>`)}`;
}

function factsOf(one) {
  return [
    ["Listens at", html`<code>${one.listen.join("  ") || "–"}</code>`], ["Clients", count(one.clients)], ["Messages in", count(one.messages_in)],
    ["Messages out", count(one.messages_out)], ["CPU", one.cpu_percent === null ? null : `${one.cpu_percent.toFixed(0)} %`],
    ["Memory", size(one.rss_bytes)], ["Up for", span(one.uptime_s)], ["Restarts", count(one.restarts)],
  ];
}

function restOf(one) {
  return Object.entries(one).filter(([name]) => !SHOWN.has(name)).map(([name, value]) => [words(name), typeof value === "number" ? (name.endsWith("_bytes") ? size(value) : count(value)) : text(value)]);
}

// -- webhooks and bridges -----------------------------------------------------------------------------------------

export function Webhooks({ me, query }) {
  const columns = [
    { name: "queue", title: "Queue", sort: "queue", show: (row) => html`<${Link} path=${["queue", row.vpn, row.queue]}>${row.queue}<//>` },
    { name: "url", title: "Posts to", show: (row) => html`<code>${row.url}</code>` },
    { name: "delivered", title: "Accepted", number: true, sort: "accepted", show: (row) => count(row.accepted) },
    { name: "failed", title: "Failed", number: true, sort: "failed", show: (row) => count(row.failed) },
    { name: "waiting", title: "Waiting", number: true, minor: true, sort: "waiting", show: (row) => count(row.waiting) },
    { name: "last", title: "Last failure", show: (row) => (row.last_failure ? `${row.last_failure}, ${span(row.last_failure_s)} ago` : "–") },
  ];
  return html`<${Carriers} ...${{ me, query, columns }} kind="webhook" title="Webhooks" note="Each posts the messages of a queue to a URL" empty="No webhook: angarium webhook create NAME --set queue=Q --set url=URL" />`;
}

export function Bridges({ me, query }) {
  const columns = [
    { name: "remote", title: "Remote Message VPN", sort: "remote_vpn", show: (row) => row.remote_vpn },
    { name: "addresses", title: "At", show: (row) => html`<code>${row.addresses.join("  ")}</code>` },
    { name: "direct", title: "Direct", number: true, show: (row) => count(row.messages) },
    { name: "guaranteed", title: "Guaranteed", number: true, show: (row) => count(row.guaranteed_messages) },
    { name: "queued", title: "Waiting there", number: true, show: (row) => count(row.queued_messages) },
    { name: "lag", title: "Lag", number: true, minor: true, sort: "lag_ms", show: (row) => (typeof row.lag_ms === "number" ? `${count(row.lag_ms)} ms` : "–") },
  ];
  return html`<${Carriers} ...${{ me, query, columns }} kind="bridge" title="Bridges" note="Each takes messages of a remote Message VPN into its own" empty="No bridge: angarium bridge create NAME" />`;
}

function Carriers({ me, kind, title, note, columns, empty }) {
  const [shown, setShown] = useState(null);
  const [rows, setRows] = useState([]);
  // After a change the list is asked for anew.
  const [changes, setChanges] = useState(0);
  const plural = `${kind}s`;
  const all = [
    { name: "name", title: "Name", main: true, sort: "name", show: (row) => html`<button type="button" class="link" onClick=${() => setShown(row)}>${row.name}</button>` },
    { name: "vpn", title: "Message VPN", minor: true, sort: "vpn", show: (row) => row.vpn },
    { name: "state", title: "State", sort: "state", show: (row) => html`<${Badge} mood=${{ up: "good", disabled: "quiet" }[row.state] ?? "bad"}>${row.state}<//>${row.error && html` <span class="quiet">${row.error}</span>`}` },
    ...columns,
  ];
  return html`
    <${Head} title=${title} note=${note} />
    <${List} key=${changes} caption=${title} pieces=${me.vpn ? ["vpns", me.vpn, plural] : [plural]} columns=${all} search="Find by name" sort="name" keyOf=${(row) => `${row.vpn}/${row.name}`} empty=${empty} onRows=${setRows} />
    ${shown && html`<${Carrier} ...${{ me, kind }} row=${rows.find((row) => row.vpn === shown.vpn && row.name === shown.name) ?? shown} onChange=${() => setChanges(changes + 1)} onClose=${() => setShown(null)} />`}`;
}

function Carrier({ me, kind, row, onChange, onClose }) {
  const [problem, setProblem] = useState(null);
  async function toggle() {
    try {
      await send("PATCH", at(["vpns", row.vpn, `${kind}s`, row.name]), { body: { enabled: !row.enabled } });
      notify(`${row.name} is ${row.enabled ? "disabled" : "enabled"}`);
      onChange();
      onClose();
    } catch (refused) {
      setProblem(refused);
    }
  }
  const facts = Object.entries(row).filter(([name]) => name !== "kind").map(([name, value]) => [words(name), typeof value === "number" ? count(value) : text(value)]);
  return html`<${Dialog} title=${`${words(kind)} ${row.name}`} onClose=${onClose} wide>
    <${Refusal} problem=${problem} />
    <${Facts} rows=${facts} />
    <footer>
      ${may(me, "administrator", row.vpn) && html`<${Button} onClick=${toggle}>${row.enabled ? "Disable" : "Enable"}<//>`}
      <${Button} onClick=${onClose}>Close<//>
    </footer>
  <//>`;
}
