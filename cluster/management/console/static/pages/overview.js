// The node at a glance: what is wrong, what comes in and goes out, who is there, what is stored, which processes run.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { get, page, recent } from "../node/api.js";
import { pauseAfter, usePolling } from "../node/polling.js";
import { sample } from "../node/rings.js";
import { Chart } from "../parts/chart.js";
import { Badge, Facts, Figure, Head, Panel } from "../parts/controls.js";
import { count, rate, size, sizeRate, span, time, words } from "../parts/format.js";
import { Loading, Refusal } from "../parts/notices.js";
import { Link } from "../parts/route.js";
import { Table } from "../parts/table.js";

const RATES = ["messages_in_per_s", "messages_out_per_s"];
const BYTES = ["bytes_in_per_s", "bytes_out_per_s"];
const DEEPEST = { fields: "vpn,name,messages_spooled,spool_usage_bytes,bind_count", sort: "-messages_spooled", filter: "messages_spooled>0", limit: 8 };

/** What changes less than rates do is asked for less often; what is wrong least often, while nothing is. */
const SELDOM_MS = 6_000;
const RARELY_MS = 15_000;

/** Call `ask()` unless that was done, as `name`, less than a pause ago. */
async function whenDue(asked, name, pauseMs, ask) {
  const began = performance.now();
  const { at, tookMs } = asked[name] ?? { at: -Infinity, tookMs: 0 };
  if (began - at < pauseAfter(tookMs, pauseMs)) return;
  await ask();
  asked[name] = { at: performance.now(), tookMs: performance.now() - began };
}

/** Give what the page shows: one answer after the other, over one connection. `kept` has what is not asked for each time. */
async function ask(signal, kept) {
  kept.status = await recent(["status"], { signal });
  await whenDue(kept.asked, "deepest", SELDOM_MS, async () => {
    kept.deepest = (await page(["queues"], DEEPEST, { signal })).rows;
  });
  await whenDue(kept.asked, "alarms", isWell(kept) ? RARELY_MS : SELDOM_MS, async () => {
    for (const name of ["health", "cluster", "standby"]) kept[name] = await recent([name], { signal });
  });
  const messages = sample("node messages", RATES, kept.status.rates);
  const bytes = sample("node bytes", BYTES, kept.status.rates);
  return { ...kept, messages, bytes };
}

/** Tell whether nothing is wrong: neither by what was asked for last, nor by the newest figures. */
function isWell({ status, health, cluster }) {
  const isSound = !status.topology_issues && status.processes.every((one) => one.state === "ready");
  return isSound && Boolean(cluster) && !alarmsOf({ status, health, cluster }).length;
}

export function Overview({ me }) {
  return me.vpn ? html`<${OfVpn} vpn=${me.vpn} />` : html`<${OfNode} />`;
}

function OfNode() {
  const kept = useRef({ asked: {} });
  const { value, problem } = usePolling("overview", (signal) => ask(signal, kept.current));
  if (!value) return problem ? html`<${Refusal} problem=${problem} />` : html`<${Loading} />`;
  const { status, health, cluster, deepest, standby: pair, messages, bytes } = value;
  const { spool, rates } = status;
  const note = `Cluster ${cluster.cluster} · up for ${span(status.uptime_s)}`;
  return html`
    <${Head} title=${`Node ${status.node}`} note=${note} />
    <${Refusal} problem=${problem} />
    <${Alarms} ...${{ status, health, cluster }} />
    <dl class="figures">
      <${Figure} label="Messages in" value=${rate(rates.messages_in_per_s)} note=${sizeRate(rates.bytes_in_per_s)} />
      <${Figure} label="Messages out" value=${rate(rates.messages_out_per_s)} note=${`${sizeRate(rates.bytes_out_per_s)} to subscribers`} />
      <${Figure} label="Clients" value=${html`<${Link} path=${["clients"]}>${count(status.sessions)}<//>`} note=${`${count(status.subscriptions)} subscriptions`} />
      <${Figure} label="Messages stored" value=${count(spool.messages)} note=${`${size(spool.usage_bytes)} of ${size(spool.quota_bytes)}`} />
      <${Figure} label="Unacknowledged" value=${count(spool.delivered_unacked)} note=${`of ${count(spool.delivered_unacked_max)}`} />
      <${Figure} label="Endpoints" value=${count(spool.endpoints)} note=${`${count(spool.producers)} open producers`} />
    </dl>
    <div class="columns">
      <${Panel} id="rates" title="Messages each second"><${Chart} label="Messages each second" series=${["In", "To subscribers"]} data=${messages} show=${rate} /><//>
      <${Panel} id="bytes" title="Bytes each second"><${Chart} label="Bytes each second" series=${["In", "To subscribers"]} data=${bytes} show=${sizeRate} /><//>
    </div>
    <div class="columns">
      <${Panel} id="deepest" title="Fullest queues" actions=${html`<${Link} path=${["queues"]}>All queues<//>`}><${Deepest} rows=${deepest} /><//>
      <${Panel} id="losses" title="Refused and discarded since the start"><${Losses} status=${status} /><//>
    </div>
    <${Panel} id="processes" title="Processes"><${Processes} rows=${status.processes} /><//>
    ${pair.role !== "alone" && html`<${Panel} id="pair" title="Hosts"><${Facts} rows=${hosts(pair)} /><//>`}
    <${Panel} id="addresses" title="Addresses"><${Facts} rows=${addresses(status)} /><//>`;
}

function addresses(status) {
  const rows = [["Clients", [status.url]], ["MQTT", status.mqtt], ["HTTP", status.http ?? []], ["Management", status.management]];
  return rows.map(([name, urls]) => [name, urls.length ? html`<code>${urls.join("  ")}</code>` : html`<span class="quiet">none</span>`]);
}

/** How the hosts of a pair do. */
function hosts(pair) {
  const isAlone = pair.in_sync.length < 2;
  const lag = Math.max(0, ...pair.stores.map((one) => one.lag_groups));
  return [
    ["Primary", `${pair.primary}, epoch ${pair.epoch}`],
    ["Since", pair.begun ? `${time(pair.begun)}: ${pair.why}` : time(pair.since)],
    ["In sync", html`<${Badge} mood=${isAlone ? "bad" : "good"}>${pair.in_sync.join(" and ")}<//>${isAlone ? " what is acknowledged now is on one disk" : ""}`],
    ["Lag", `${count(lag)} groups`],
    ["Outside store", `${pair.store}, ${pair.failure || "answers"}`],
  ];
}

/** Give what is wrong: the mood, a name, and a sentence of each. */
function alarmsOf({ status, health, cluster }) {
  const more = status.spool.lanes_kept_aside;
  return [
    ...health.checks.filter((one) => !one.ok).map((one) => ["bad", one.name, one.text]),
    ...status.disk_full.map((one) => ["bad", "Disk full", `${one}: free space; consumers make room`]),
    ...cluster.issues.map((one) => ["warn", one.kind, `${one.text}${one.advice ? ` – ${one.advice}` : ""}`]),
    ...health.links.filter((one) => !one.ok).map((one) => ["warn", one.name, one.text]),
    ...status.certificates.map((one) => ["warn", "Certificate", typeof one === "string" ? one : Object.values(one).join(" ")]),
    ...(more ? [["warn", "Kept aside", `${count(more)} lanes that no object claims: angarium spool show`]] : []),
  ];
}

/** What is wrong, or that nothing is; and who comes in without a password. */
function Alarms(of) {
  const alarms = alarmsOf(of);
  const open = of.status.passwordless;
  return html`<div class="alarms" aria-live="polite">
    ${!alarms.length && html`<p class="good"><${Badge} mood="good">Well<//> Every check passes, no issue of the cluster.</p>`}
    ${alarms.map(([mood, name, text]) => html`<p key=${`${name}${text}`} class=${mood}><${Badge} mood=${mood}>${name}<//> ${text}</p>`)}
    ${open.length > 0 && html`<p class="warn"><${Badge} mood="warn">No password<//> Clients on this host need none to log in as ${open.map((one) => (one.vpn === "default" ? one.username : `${one.username} of Message VPN ${one.vpn}`)).join(", ")}.</p>`}
  </div>`;
}

function Deepest({ rows }) {
  const columns = [
    { name: "name", title: "Queue", main: true, show: (row) => html`<${Link} path=${["queue", row.vpn, row.name]}>${row.name}<//>` },
    { name: "messages", title: "Messages", number: true, show: (row) => count(row.messages_spooled) },
    { name: "size", title: "Size", number: true, show: (row) => size(row.spool_usage_bytes) },
    { name: "consumers", title: "Consumers", number: true, show: (row) => count(row.bind_count) },
  ];
  return html`<${Table} caption="Fullest queues" columns=${columns} rows=${rows} keyOf=${(row) => `${row.vpn}/${row.name}`} empty="No queue holds a message." />`;
}

function Losses({ status }) {
  const rows = [
    ...Object.entries(status.discards).map(([name, number]) => ({ kind: "discard", name: words(name.replaceAll("-", " ")), number })),
    ...Object.entries(status.errors).map(([name, number]) => ({ kind: "error", name: `Error ${name}`, number })),
  ].sort((one, other) => other.number - one.number);
  const columns = [
    { name: "name", title: "Why", main: true, show: (row) => row.name },
    { name: "number", title: "Number", number: true, show: (row) => count(row.number) },
  ];
  return html`<${Table} caption="Refused and discarded" columns=${columns} rows=${rows} keyOf=${(row) => row.kind + row.name} empty="Nothing." />`;
}

function Processes({ rows }) {
  const columns = [
    { name: "role", title: "Process", main: true, show: (row) => `${row.role}.${row.index}` },
    { name: "state", title: "State", show: (row) => html`<${Badge} mood=${row.state === "ready" ? "good" : "bad"}>${row.state}<//>` },
    { name: "cpu", title: "CPU", number: true, show: (row) => (row.cpu_percent === null ? "–" : `${row.cpu_percent.toFixed(0)} %`) },
    { name: "memory", title: "Memory", number: true, show: (row) => size(row.rss_bytes) },
    { name: "uptime", title: "Up for", number: true, show: (row) => span(row.uptime_s) },
    { name: "restarts", title: "Restarts", number: true, show: (row) => count(row.restarts) },
    { name: "pid", title: "Process id", number: true, minor: true, show: (row) => row.pid || "–" },
  ];
  return html`<${Table} caption="Processes" columns=${columns} rows=${rows} keyOf=${(row) => `${row.role}.${row.index}`} />`;
}

/** Of an operator of one Message VPN: the figures of the node are not his. */
function OfVpn({ vpn }) {
  const [data, setData] = useState(null);
  const { value, problem } = usePolling(vpn, async (signal) => {
    const [deepest, clients, events] = await Promise.all([
      page(["vpns", vpn, "queues"], DEEPEST, { signal }),
      page(["vpns", vpn, "clients"], { limit: 1, fields: "name" }, { signal }),
      get(["events"], { vpn, limit: 10 }, { signal }),
    ]);
    return { deepest, clients: clients.total, events };
  });
  useEffect(() => {
    if (value) setData(value);
  }, [value]);
  if (!data) return problem ? html`<${Refusal} problem=${problem} />` : html`<${Loading} />`;
  return html`
    <${Head} title=${`Message VPN ${vpn}`} />
    <${Refusal} problem=${problem} />
    <dl class="figures">
      <${Figure} label="Clients" value=${html`<${Link} path=${["clients"]}>${count(data.clients)}<//>`} />
      <${Figure} label="Queues that hold messages" value=${count(data.deepest.total)} />
    </dl>
    <${Panel} id="deepest" title="Fullest queues"><${Deepest} rows=${data.deepest.rows} /><//>
    <${Panel} id="newest" title="Newest events">
      <ul class="plain">${data.events.toReversed().map((one) => html`<li key=${one.id}><span class="quiet">${time(one.time)}</span> ${one.text}</li>`)}</ul>
    <//>`;
}
