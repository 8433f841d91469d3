// Events: what happened at the node, the newest first.

import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { get } from "../node/api.js";
import { usePolling } from "../node/polling.js";
import { useStream } from "../node/streams.js";
import { Badge, Field, Head, Moment } from "../parts/controls.js";
import { Loading, Refusal } from "../parts/notices.js";
import { Search } from "../parts/list.js";
import { go } from "../parts/route.js";
import { Table } from "../parts/table.js";
import { VpnFilter, useVpns } from "../parts/vpns.js";

const NEWEST = 1_000;
const SHOWN_MAX = 200;
const MOODS = { info: "quiet", notice: "quiet", warning: "warn" };

const COLUMNS = [
  { name: "time", title: "Time", show: (row) => html`<${Moment} value=${row.time} />` },
  { name: "severity", title: "Severity", show: (row) => html`<${Badge} mood=${MOODS[row.severity] ?? "bad"}>${row.severity}<//>` },
  { name: "event", title: "Event", main: true, minor: true, show: (row) => html`<code class="whole">${row.event}</code>` },
  { name: "text", title: "What happened", show: (row) => row.text },
  { name: "vpn", title: "Message VPN", minor: true, show: (row) => row.vpn ?? "–" },
  { name: "client", title: "Client", minor: true, show: (row) => row.client ?? "–" },
];

export function Events({ me, query }) {
  const vpns = useVpns();
  const vpn = query.vpn || me.vpn;
  const before = usePolling(vpn, (signal) => get(["events"], { limit: NEWEST, vpn }, { signal }), 0);
  // What happens from now on.
  const [came, setCame] = useState([]);
  useEffect(() => setCame([]), [vpn]);
  const broken = useStream(["events"], { vpn }, (kind, event) => {
    if (kind === "message") setCame((some) => [...some, event].slice(-NEWEST));
  });
  const problem = before.problem ?? broken;
  // An event that both bring is one.
  const value = before.value && !before.isOld ? [...new Map([...before.value, ...came].map((one) => [one.id, one])).values()] : null;
  const find = (query.find ?? "").toLowerCase();
  const severity = query.severity ?? "";
  const severities = [...new Set((value ?? []).map((one) => one.severity))].sort();
  const fitting = (value ?? []).toSorted((one, other) => other.id - one.id).filter((one) =>
    (!severity || one.severity === severity) && (!find || `${one.event} ${one.text} ${one.client ?? ""}`.toLowerCase().includes(find)));
  return html`
    <${Head} title="Events" note=${`Of the newest ${NEWEST} the newest first; all of them: angarium events`} />
    <div class="filters">
      <${Search} label="Find" value=${query.find ?? ""} onChange=${(text) => go(["events"], { ...query, find: text })} placeholder="part of an event, a text or a client" />
      <${Field} type="select" label="Severity" value=${severity} onInput=${(next) => go(["events"], { ...query, severity: next })} options=${[["", "all"], ...severities.map((one) => [one, one])]} />
      <${VpnFilter} vpns=${vpns} value=${query.vpn ?? ""} path=${["events"]} query=${query} />
    </div>
    <${Refusal} problem=${problem} />
    ${value ? html`<div class="list"><${Table} caption="Events" columns=${COLUMNS} rows=${fitting.slice(0, SHOWN_MAX)} keyOf=${(row) => row.id} empty="No such event." /></div>` : !problem && html`<${Loading} />`}`;
}
