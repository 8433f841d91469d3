// Queues, as many as there are: paged, sorted and filtered by the node.

import { html, useState } from "../vendor/preact-htm.js";
import { change } from "../node/api.js";
import { may } from "../node/rights.js";
import { Badge, Button, Field, Head } from "../parts/controls.js";
import { FormDialog } from "../parts/dialog.js";
import { count, rate, since, size } from "../parts/format.js";
import { List } from "../parts/list.js";
import { notify } from "../parts/notices.js";
import { Link, go } from "../parts/route.js";
import { VpnFilter, useVpns } from "../parts/vpns.js";

const FIELDS = "vpn,name,messages_spooled,spool_usage_bytes,delivered_unacked,bind_count,messages_in_per_s,messages_out_per_s,oldest_stored_ms,access_type,ingress_enabled,egress_enabled";
const HOLDING = { all: "", holding: "messages_spooled>0", idle: "bind_count=0", waiting: "delivered_unacked>0" };

export const endpointColumns = (page) => [
  { name: "name", title: "Name", main: true, sort: "name", show: (row) => html`<${Link} path=${[page, row.vpn, row.name]}>${row.name}<//>` },
  { name: "vpn", title: "Message VPN", sort: "vpn", show: (row) => row.vpn },
  { name: "messages", title: "Messages", number: true, sort: "messages_spooled", show: (row) => html`${grows(row) && html`<${Badge} mood="warn">grows<//> `}${count(row.messages_spooled)}` },
  { name: "size", title: "Size", number: true, minor: true, sort: "spool_usage_bytes", show: (row) => size(row.spool_usage_bytes) },
  { name: "unacked", title: "Unacked", number: true, minor: true, sort: "delivered_unacked", show: (row) => count(row.delivered_unacked) },
  { name: "consumers", title: "Consumers", number: true, sort: "bind_count", show: (row) => count(row.bind_count) },
  { name: "in", title: "In", number: true, sort: "messages_in_per_s", show: (row) => rate(row.messages_in_per_s) },
  { name: "out", title: "Out", number: true, sort: "messages_out_per_s", show: (row) => rate(row.messages_out_per_s) },
  { name: "oldest", title: "Oldest", number: true, minor: true, sort: "oldest_stored_ms", show: (row) => since(row.oldest_stored_ms) },
  { name: "access", title: "Access", minor: true, sort: "access_type", show: (row) => html`${row.access_type} <${Doors} row=${row} />` },
];

/** Whether clearly more comes in than goes out. */
export function grows(row) {
  return row.messages_in_per_s > 1.1 * row.messages_out_per_s + 0.1;
}

/** Say which way an endpoint is shut. */
export function Doors({ row }) {
  const shut = [row.ingress_enabled === false && "takes nothing", row.egress_enabled === false && "delivers nothing"].filter(Boolean);
  return shut.map((text) => html`<${Badge} key=${text} mood="warn">${text}<//> `);
}

export function Queues({ me, query }) {
  return html`<${Endpoints} ...${{ me, query }} title="Queues" kind="queue" plural="queues" page="queue" />`;
}

export function TopicEndpoints({ me, query }) {
  return html`<${Endpoints} ...${{ me, query }} title="Topic endpoints" kind="topic-endpoint" plural="topic-endpoints" page="topic-endpoint" />`;
}

function Endpoints({ me, query, title, kind, plural, page }) {
  const vpns = useVpns();
  const [isMaking, setMaking] = useState(false);
  const vpn = query.vpn || me.vpn;
  const pieces = vpn ? ["vpns", vpn, plural] : [plural];
  const columns = endpointColumns(page).filter((one) => one.name !== "vpn" || vpns.length > 1);
  const show = query.show ?? "all";
  const filter = HOLDING[show] ?? "";
  const makes = may(me, "operator", me.vpn || vpn);
  return html`
    <${Head} title=${title} actions=${makes && html`<${Button} kind="primary" onClick=${() => setMaking(true)}>New ${kind.replace("-", " ")}<//>`} />
    <${List} caption=${title} pieces=${pieces} query=${{ fields: FIELDS, filter }} columns=${columns} search="Find by name"
        sort="-messages_spooled" keyOf=${(row) => `${row.vpn}/${row.name}`} empty=${`No ${title.toLowerCase()} here.`}>
      <${VpnFilter} vpns=${vpns} value=${query.vpn ?? ""} path=${[plural]} query=${query} />
      <${Field} type="select" label="Show" value=${show} onInput=${(next) => go([plural], { ...query, show: next === "all" ? "" : next })}
        options=${[["all", "all"], ["holding", "that hold messages"], ["idle", "without a consumer"], ["waiting", "with unacknowledged messages"]]} />
    <//>
    ${isMaking && html`<${NewEndpoint} ...${{ kind, plural, page, vpns, vpn: vpn || "default" }} onClose=${() => setMaking(false)} />`}`;
}

function NewEndpoint({ kind, plural, page, vpns, vpn: first, onClose }) {
  const [vpn, setVpn] = useState(first);
  const [name, setName] = useState("");
  const [isShared, setShared] = useState(false);
  const [subscriptions, setSubscriptions] = useState("");
  const filters = subscriptions.split("\n").map((line) => line.trim()).filter(Boolean);
  async function make() {
    const body = { name, access_type: isShared ? "non-exclusive" : "exclusive", ...(kind === "queue" ? { subscriptions: filters } : {}) };
    await change("POST", ["vpns", vpn, plural], body);
    notify(`${name} was made`);
    location.hash = `#/${page}/${encodeURIComponent(vpn)}/${encodeURIComponent(name)}`;
  }
  return html`<${FormDialog} title=${`New ${kind.replace("-", " ")}`} action="Make it" onSubmit=${make} onClose=${onClose} ready=${Boolean(name)}>
    ${vpns.length > 1 && html`<${Field} type="select" label="Message VPN" value=${vpn} onInput=${setVpn} options=${vpns.map((one) => [one, one])} />`}
    <${Field} label="Name" value=${name} onInput=${setName} required autocomplete="off" />
    <${Field} type="checkbox" label="Several consumers share it (non-exclusive)" value=${isShared} onInput=${setShared} />
    ${kind === "queue" && html`<${Field} type="textarea" label="Subscriptions" rows="3" value=${subscriptions} onInput=${setSubscriptions} hint="Topics that it takes, one a line, as in orders/*/new or orders/>" />`}
  <//>`;
}
