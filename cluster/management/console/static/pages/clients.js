// Clients: who is connected, what each has subscribed to, and ending a session.

import { html, useState } from "../vendor/preact-htm.js";
import { change, get } from "../node/api.js";
import { usePolling } from "../node/polling.js";
import { may } from "../node/rights.js";
import { sample } from "../node/rings.js";
import { Chart } from "../parts/chart.js";
import { Badge, Button, Facts, Field, Figure, Head, Panel } from "../parts/controls.js";
import { Question } from "../parts/dialog.js";
import { count, counted, size, span, words } from "../parts/format.js";
import { List } from "../parts/list.js";
import { Loading, Refusal, notify } from "../parts/notices.js";
import { Link, go } from "../parts/route.js";
import { Table } from "../parts/table.js";
import { VpnFilter, useVpns } from "../parts/vpns.js";

const FIELDS = "vpn,name,username,address,sdk,uptime_s,subscriptions,flows,producers,slow,queued_messages,counters.messages_in";
const QUEUED = ["queued_messages"];

const COLUMNS = [
  { name: "name", title: "Client", main: true, sort: "name", show: (row) => html`<${Link} path=${["client", row.vpn, row.name]}>${row.name}<//>` },
  { name: "vpn", title: "Message VPN", sort: "vpn", show: (row) => row.vpn },
  { name: "username", title: "Username", sort: "username", show: (row) => row.username },
  { name: "address", title: "Address", minor: true, sort: "address", show: (row) => row.address || "–" },
  { name: "sdk", title: "Software", minor: true, sort: "sdk", show: (row) => row.sdk },
  { name: "uptime", title: "For", number: true, sort: "uptime_s", show: (row) => span(row.uptime_s) },
  { name: "published", title: "Published", number: true, sort: "counters.messages_in", show: (row) => count(row["counters.messages_in"]) },
  { name: "subscriptions", title: "Subscriptions", number: true, minor: true, sort: "subscriptions", show: (row) => count(row.subscriptions) },
  { name: "flows", title: "Flows", number: true, minor: true, sort: "flows", show: (row) => count(row.flows) },
  { name: "waiting", title: "Waiting", number: true, sort: "queued_messages", show: (row) => html`${row.slow && html`<${Badge} mood="warn">slow<//> `}${count(row.queued_messages)}` },
];

export function Clients({ me, query }) {
  const vpns = useVpns();
  const vpn = query.vpn || me.vpn;
  const slow = query.show === "slow" ? "slow=true" : "";
  const columns = COLUMNS.filter((one) => one.name !== "vpn" || vpns.length > 1);
  return html`
    <${Head} title="Clients" />
    <${List} caption="Clients" pieces=${vpn ? ["vpns", vpn, "clients"] : ["clients"]} query=${{ fields: FIELDS, filter: slow }} columns=${columns}
        search="Find by name" sort="name" keyOf=${(row) => `${row.vpn}/${row.name}`} empty="No client.">
      <${VpnFilter} vpns=${vpns} value=${query.vpn ?? ""} path=${["clients"]} query=${query} />
      <${Field} type="select" label="Show" value=${query.show ?? ""} options=${[["", "all"], ["slow", "slow ones"]]} onInput=${(show) => go(["clients"], { ...query, show })} />
    <//>`;
}

export function Client({ me, args: [vpn, name] }) {
  const pieces = ["vpns", vpn, "clients", name];
  const place = pieces.join("\n");
  const [isAsked, setAsked] = useState(false);
  const { value, problem } = usePolling(place, async (signal) => {
    const client = await get(pieces, {}, { signal });
    return { client, waiting: sample(`client ${place}`, QUEUED, client) };
  }, 2_000);
  if (problem?.status === 404) return html`<${Head} title=${name} note=${`Message VPN ${vpn}`} /><${Refusal} problem=${problem} />`;
  if (!value) return problem ? html`<${Refusal} problem=${problem} />` : html`<${Loading} />`;
  const { client, waiting } = value;
  async function disconnect() {
    await change("DELETE", pieces);
    notify(`${name} was disconnected`);
    location.hash = "#/clients";
  }
  const facts = [
    ["Username", html`<${Link} path=${["usernames", vpn, client.username]}>${client.username}<//>`],
    ["Client profile", html`<${Link} path=${["profiles", vpn, client.profile]}>${client.profile}<//>`], ["Address", client.address || null], ["Software", client.sdk],
    ["Memory", size(client.memory_bytes)], ["Producers", count(client.producers)], ["Flows", count(client.flows)],
    ["Deliver-to-one priority", `${client.local_priority} here, ${client.network_priority} in the mesh`],
  ];
  return html`
    <${Head} title=${name} note=${`Client of Message VPN ${vpn}, for ${span(client.uptime_s)}`}
      actions=${may(me, "operator", vpn) && html`<${Button} kind="danger" onClick=${() => setAsked(true)}>Disconnect<//>`} />
    <${Refusal} problem=${problem} />
    ${client.slow && html`<div class="alarms"><p class="warn"><${Badge} mood="warn">Slow<//> Messages have been waiting for it for 3 s or longer.</p></div>`}
    <dl class="figures">
      <${Figure} label="Published" value=${count(client.counters?.messages_in)} />
      <${Figure} label="Waiting" value=${count(client.queued_messages)} note=${size(client.queued_bytes)} />
      <${Figure} label="Subscriptions" value=${count(client.subscriptions)} />
      <${Figure} label="Discarded" value=${count(Object.values(client.discards ?? {}).reduce((sum, one) => sum + one, 0))} />
    </dl>
    <div class="columns">
      <${Panel} id="about" title="About"><${Facts} rows=${facts} /><//>
      <${Panel} id="waiting" title="Messages waiting for it"><${Chart} label="Waiting messages" series=${["Waiting"]} data=${waiting} show=${count} /><//>
    </div>
    <${Panel} id="subscriptions" title="Subscriptions"><${Subscriptions} rows=${client.subscription_list} /><//>
    ${Object.keys(client.discards ?? {}).length > 0 && html`<${Panel} id="discards" title="Discarded">
      <${Facts} rows=${Object.entries(client.discards).map(([why, number]) => [words(why.replace(/^discard\./, "").replaceAll("-", " ")), count(number)])} /><//>`}
    ${isAsked && html`<${Question} title=${`Disconnect ${name}?`} action="Disconnect it" onSubmit=${disconnect} onClose=${() => setAsked(false)}>
      <p>The session of <strong>${name}</strong> (username ${client.username}${client.address && `, from ${client.address}`}) is ended, with ${counted(client.flows, "flow")} and ${counted(client.subscriptions, "subscription")}.</p>
      <p>${counted(client.queued_messages, "message")} that wait for it are dropped; unacknowledged ones of queues are delivered again. A client that reconnects by itself will be back at once: disable its username to keep it out.</p>
    <//>`}`;
}

function Subscriptions({ rows }) {
  const columns = [
    { name: "filter", title: "Filter", main: true, show: (row) => html`<code>${row.filter}</code>` },
    { name: "share", title: "Shared as", show: (row) => row.share ?? "–" },
    { name: "priority", title: "Priority", show: (row) => row.dto_priority },
    { name: "noexport", title: "Exported", show: (row) => (row.noexport ? "no" : "yes") },
    { name: "origin", title: "Added by", show: (row) => row.origin },
  ];
  return html`<${Table} caption="Subscriptions" columns=${columns} rows=${rows} keyOf=${(row) => `${row.filter} ${row.share} ${row.origin}`} empty="None." />`;
}
