// The audit log: who did what, from where, what was before and after, and how it ended.

import { html, useState } from "../vendor/preact-htm.js";
import { run } from "../node/api.js";
import { usePolling } from "../node/polling.js";
import { Badge, Button, Facts, Field, Head, Moment } from "../parts/controls.js";
import { Dialog } from "../parts/dialog.js";
import { count, text } from "../parts/format.js";
import { Loading, Refusal } from "../parts/notices.js";
import { Search } from "../parts/list.js";
import { go } from "../parts/route.js";
import { Table } from "../parts/table.js";

const NEWEST = 1_000;
const SHOWN_MAX = 200;
/** Objects of an entry that are named in the list. */
const ABOUT_MAX = 2;

/** Give the names of what an entry is about: queue default/orders. */
function objectsOf(deed) {
  const told = deed.changes?.length ? deed.changes : [deed.asked ?? {}];
  return told.filter((one) => one.name || one.kind).map((one) => [one.kind, [one.vpn, one.name].filter(Boolean).join("/")].filter(Boolean).join(" "));
}

/** Says below the operation what it was about. */
function About({ names, left }) {
  if (!names.length) return null;
  const more = names.length - ABOUT_MAX + left;
  return html`<span class="about">${names.slice(0, ABOUT_MAX).join(", ")}${more > 0 && ` and ${count(more)} more`}</span>`;
}

function columnsOf(show) {
  return [
    { name: "time", title: "Time", show: (row) => html`<${Moment} value=${row.time} />` },
    { name: "who", title: "Operator", show: (row) => row.who },
    { name: "operation", title: "Operation", main: true, show: (row) => html`<code class="whole">${row.operation}</code><${About} names=${objectsOf(row)} left=${row.objects_left_out ?? 0} />` },
    { name: "outcome", title: "Outcome", show: (row) => html`<${Badge} mood=${row.outcome === "done" ? "good" : "bad"}>${row.outcome}<//>` },
    { name: "address", title: "From", minor: true, show: (row) => `${row.door}${row.address ? ` ${row.address}` : ""}` },
    { name: "more", title: html`<span class="unseen">More</span>`, show: (row) => html`<button type="button" class="link" aria-label=${`Show entry ${row.number}`} onClick=${() => show(row)}>Show</button>` },
  ];
}

export function Audit({ query }) {
  const [shown, setShown] = useState(null);
  const who = query.who ?? "";
  const { value, problem } = usePolling(who, (signal) => run("audit", { limit: NEWEST, who }, { signal }), 4_000);
  const object = (query.object ?? "").toLowerCase();
  const outcome = query.outcome ?? "";
  const fitting = (value ?? []).toReversed().filter((one) =>
    (!outcome || (one.outcome === "done") === (outcome === "done")) &&
    (!object || `${one.operation} ${objectsOf(one).join(" ")}`.toLowerCase().includes(object)));
  const change = (more) => go(["audit"], { ...query, ...more });
  return html`
    <${Head} title="Audit log" note=${`Of the newest ${NEWEST} entries the newest first; older ones are in the files of the node`} />
    <div class="filters">
      <${Search} label="Object or operation" value=${query.object ?? ""} onChange=${(next) => change({ object: next })} placeholder="part of a name, as in orders or objects.update" />
      <${Search} label="Operator" value=${who} onChange=${(next) => change({ who: next })} placeholder="the whole name" />
      <${Field} type="select" label="Outcome" value=${outcome} onInput=${(next) => change({ outcome: next })} options=${[["", "all"], ["done", "done"], ["refused", "refused"]]} />
    </div>
    <${Refusal} problem=${problem} />
    ${value ? html`<div class="list"><${Table} caption="Audit log" columns=${columnsOf(setShown)} rows=${fitting.slice(0, SHOWN_MAX)} keyOf=${(row) => row.number} empty="No such entry." /></div>` : !problem && html`<${Loading} />`}
    ${shown && html`<${Entry} deed=${shown} onClose=${() => setShown(null)} />`}`;
}

function Entry({ deed, onClose }) {
  const asked = Object.entries(deed.asked ?? {}).map(([name, value]) => [name, html`<code>${text(value)}</code>`]);
  const rows = [
    ["Time", html`<${Moment} value=${deed.time} />`], ["Operator", `${deed.who}, ${deed.role}${deed.vpn ? ` of ${deed.vpn}` : ""}`],
    ["From", `${deed.door} ${deed.address ?? ""}`], ["Operation", html`<code>${deed.operation}</code>`], ["Outcome", text(deed.outcome)],
    ...asked,
  ];
  return html`<${Dialog} title=${`Entry ${deed.number}`} onClose=${onClose} wide>
    <${Facts} rows=${rows} />
    ${(deed.changes ?? []).map((one, place) => html`<${Changed} key=${place} change=${one} />`)}
    <footer><${Button} onClick=${onClose}>Close<//></footer>
  <//>`;
}

/** Attributes before and after. */
export function Changed({ change }) {
  const before = change.before ?? {};
  const after = change.after ?? {};
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  const columns = [
    { name: "attribute", title: "Attribute", main: true, show: (name) => html`<code>${name}</code>` },
    { name: "before", title: "Before", show: (name) => html`<code>${name in before ? text(before[name]) : "–"}</code>` },
    { name: "after", title: "After", show: (name) => html`<code>${name in after ? text(after[name]) : "–"}</code>` },
  ];
  return html`<h3>${change.kind} ${[change.vpn, change.name].filter(Boolean).join("/")}</h3>
    <${Table} caption="Changes" columns=${columns} rows=${names} keyOf=${(name) => name} empty="Nothing differs." />`;
}
