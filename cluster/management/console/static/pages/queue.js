// One queue or topic endpoint: what it holds over time, who consumes it, its messages, and what can be done with it.

import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { change, get } from "../node/api.js";
import { usePolling } from "../node/polling.js";
import { sample } from "../node/rings.js";
import { may } from "../node/rights.js";
import { Chart } from "../parts/chart.js";
import { Badge, Button, Facts, Figure, Head, Panel } from "../parts/controls.js";
import { Question } from "../parts/dialog.js";
import { count, counted, rate, since, size, sizeRate, words } from "../parts/format.js";
import { Loading, Refusal, notify } from "../parts/notices.js";
import { Link } from "../parts/route.js";
import { Table } from "../parts/table.js";
import { Attributes } from "../parts/attributes.js";
import { Messages } from "./messages.js";
import { Transfer } from "./transfer.js";

const DEPTH = ["messages_spooled", "delivered_unacked"];
const RATES = ["messages_in_per_s", "messages_out_per_s"];
/** What may become of messages that are dead, as the homes count it. */
const DEAD = ["max_redelivery_exceeded", "rejected", "ttl_expired"];

export function Queue({ me, args: [vpn, name] }) {
  return html`<${Endpoint} ...${{ me, vpn, name }} kind="queue" plural="queues" />`;
}

export function TopicEndpoint({ me, args: [vpn, name] }) {
  return html`<${Endpoint} ...${{ me, vpn, name }} kind="topic-endpoint" plural="topic-endpoints" />`;
}

function Endpoint({ me, vpn, name, kind, plural }) {
  const pieces = ["vpns", vpn, plural, name];
  const place = pieces.join("\n");
  const [asked, setAsked] = useState("");
  // Of the messages that are looked at: who has some moved means these.
  const [selector, setSelector] = useState("");
  const { value, problem, again } = usePolling(place, async (signal) => {
    const status = await get([...pieces, "status"], {}, { signal });
    return { status, depth: sample(`depth ${place}`, DEPTH, status), rates: sample(`rates ${place}`, RATES, status) };
  }, 2_000);
  if (problem?.status === 404) return html`<${Head} title=${name} note=${`Message VPN ${vpn}`} /><${Refusal} problem=${problem} />`;
  if (!value) return problem ? html`<${Refusal} problem=${problem} />` : html`<${Loading} />`;
  const { status, depth, rates } = value;
  const works = may(me, "operator", vpn);
  const close = () => {
    setAsked("");
    again();
  };
  const what = kind.replace("-", " ");
  const note = `${words(what)} of Message VPN ${vpn}, ${status.access_type}${status.partition_count ? `, ${status.partition_count} partitions` : ""}`;
  const given = { pieces, status, kind, what, onClose: close };
  return html`
    <${Head} title=${name} note=${note} actions=${works && html`
      ${kind === "queue" && html`<${Link} class="button" path=${["try"]} query=${{ vpn, queue: name }}>Publish<//>`}
      <${Button} onClick=${() => setAsked("move")}>Move or copy<//>
      <${Button} onClick=${() => setAsked("redrive")}>Redrive<//>
      <${Button} kind="danger" onClick=${() => setAsked("purge")}>Purge<//>
      <${Button} kind="danger" onClick=${() => setAsked("delete")}>Delete<//>`} />
    <${Refusal} problem=${problem} />
    <${Warnings} status=${status} />
    <${Figures} status=${status} />
    <div class="columns">
      <${Panel} id="depth" title="Depth"><${Chart} label="Depth" series=${["Messages", "Unacknowledged"]} data=${depth} show=${count} /><//>
      <${Panel} id="rates" title="Messages each second"><${Chart} label="Messages each second" series=${["In", "Out"]} data=${rates} show=${rate} /><//>
    </div>
    <div class="columns side">
      <${Panel} id="publishers" title="Publishers"><${Publishers} ...${{ pieces, vpn }} /><//>
      <${Panel} id="consumers" title="Consumers"><${Consumers} flows=${status.flows} /><//>
    </div>
    <${Messages} ...${{ me, vpn, name, pieces, partitions: status.partition_count ?? 0, held: status.messages_spooled, selector, setSelector }} />
    <div class="columns">
      <${Panel} id="counters" title="Refused, dead and deleted"><${Counters} status=${status} /><//>
      <${Attributes} pieces=${pieces} mayChange=${works} title="Attributes" />
    </div>
    ${(asked === "move" || asked === "redrive") && html`<${Transfer} ...${{ pieces, vpn, name }} first=${selector} held=${status.messages_spooled} isRedrive=${asked === "redrive"} onClose=${close} />`}
    ${asked === "purge" && html`<${Purge} ...${given} name=${name} />`}
    ${asked === "delete" && html`<${Delete} ...${given} name=${name} plural=${plural} />`}`;
}

function Warnings({ status }) {
  const told = [
    status.ingress_enabled === false && "It takes no messages: ingress_enabled is false.",
    status.egress_enabled === false && "It delivers no messages: egress_enabled is false.",
    status.reader_group && `The reader group ${status.reader_group} of ${status.reader_username} has leased it.`,
    status.messages_unreadable > 0 && `${counted(status.messages_unreadable, "message")} cannot be read from the disk.`,
  ].filter(Boolean);
  return told.length > 0 && html`<div class="alarms">${told.map((text) => html`<p key=${text} class="warn"><${Badge} mood="warn">Note<//> ${text}</p>`)}</div>`;
}

function Figures({ status }) {
  const quota = status.max_spool_usage_mb ? `of ${count(status.max_spool_usage_mb)} MB` : "keeps the newest only";
  return html`<dl class="figures">
    <${Figure} label="Messages" value=${count(status.messages_spooled)} note=${`at most so far: ${count(Math.max(status.high_water_mark_messages, status.messages_spooled))}`} />
    <${Figure} label="Size" value=${size(status.spool_usage_bytes)} note=${quota} />
    <${Figure} label="Unacknowledged" value=${count(status.delivered_unacked)} note=${status.messages_delayed ? `${count(status.messages_delayed)} delayed` : ""} />
    <${Figure} label="In" value=${rate(status.messages_in_per_s)} note=${sizeRate(status.bytes_in_per_s)} />
    <${Figure} label="Out" value=${rate(status.messages_out_per_s)} note=${sizeRate(status.bytes_out_per_s)} />
    <${Figure} label="Oldest message" value=${since(status.oldest_stored_ms)} note=${status.oldest_stored_ms ? "ago" : "empty"} />
  </dl>`;
}

/** Who fills it: asked less often than the rest, for messages are looked at for it. */
function Publishers({ pieces, vpn }) {
  const { value, problem } = usePolling(pieces.join("\n"), (signal) => get([...pieces, "publishers"], {}, { signal }), 5_000);
  const named = (row) => (row.client ? html`<${Link} path=${["client", vpn, row.client]}>${row.client}<//>` : "not connected any more");
  const columns = [
    { name: "client", title: "Client", main: true, show: named },
    { name: "messages", title: "Newest", number: true, show: (row) => count(row.messages) },
  ];
  if (!value) return problem ? html`<${Refusal} problem=${problem} />` : html`<${Loading} />`;
  return html`<p class="hint">How many of the newest messages are whose</p><${Table} caption="Publishers of the newest messages" columns=${columns} rows=${value} keyOf=${(row) => row.client} empty="It holds no messages." />`;
}

function Consumers({ flows }) {
  const columns = [
    { name: "client", title: "Client", main: true, show: (row) => html`<${Link} path=${["client", row.vpn, row.client]}>${row.client}<//>` },
    { name: "username", title: "Username", show: (row) => row.username },
    { name: "state", title: "State", show: (row) => html`<${Badge} mood=${row.active ? "good" : "quiet"}>${row.browse ? "browses" : row.active ? "active" : "standby"}<//>` },
    { name: "sent", title: "Sent", number: true, show: (row) => count(row.sent_messages) },
    { name: "settled", title: "Settled", number: true, show: (row) => count(row.settled_messages) },
    { name: "window", title: "Room for", number: true, minor: true, show: (row) => count(row.window_messages) },
    { name: "partitions", title: "Partitions", minor: true, show: (row) => (row.partitions ?? []).join(", ") || "–" },
    { name: "selector", title: "Selector", minor: true, show: (row) => (row.selector ? html`<code>${row.selector}</code>` : "–") },
  ];
  return html`<${Table} caption="Consumers" columns=${columns} rows=${flows} keyOf=${(row) => `${row.client}/${row.flow}`} empty="Nobody consumes it." />`;
}

function Counters({ status }) {
  const rows = [
    ...DEAD.flatMap((why) => ["to_dmq", "to_dmq_failures", "discard"].map((end) => `${why}_${end}`)).map((one) => [one, status[one]]),
    ["total_deleted_messages", status.total_deleted_messages],
    ["purged_messages", status.purged_messages],
    ...Object.entries(status.counters ?? {}),
  ].filter(([, number]) => number > 0);
  const facts = rows.map(([name, number]) => [words(name), count(number)]);
  const dmq = status.dead_message_queue;
  return html`
    ${dmq && html`<p>Dead messages go to <${Link} path=${["queue", status.vpn, dmq]}>${dmq}<//>.</p>`}
    ${facts.length ? html`<${Facts} rows=${facts} />` : html`<p class="nothing">Nothing.</p>`}`;
}

/** What will be lost, in a sentence with its numbers. */
function Loss({ what, name, vpn, status, verb }) {
  return html`<p>${words(what)} <strong>${name}</strong> of Message VPN <strong>${vpn}</strong> ${verb}
    ${" "}<strong>${counted(status.messages_spooled, "message")}</strong> (${size(status.spool_usage_bytes)}), ${count(status.delivered_unacked)} of them
    ${" "}delivered and unacknowledged; ${counted(status.bind_count, "consumer")} ${status.bind_count === 1 ? "is" : "are"} bound.</p>`;
}

function Purge({ pieces, status, what, name, onClose }) {
  const purge = async () => notify(`${counted((await change("POST", [...pieces, "purge"])).purged, "message")} deleted from ${name}`);
  return html`<${Question} title=${`Purge ${name}?`} action="Delete all messages" onSubmit=${purge} onClose=${onClose}>
    <${Loss} ...${{ what, name, status }} vpn=${status.vpn} verb="holds" />
    <p>All of them are deleted for good, with those that come until it is done. The ${what} and its consumers stay.</p>
  <//>`;
}

function Delete({ pieces, status, what, name, plural, onClose }) {
  async function remove() {
    await change("DELETE", pieces);
    notify(`${name} was deleted`);
    location.hash = `#/${plural}`;
  }
  return html`<${Question} title=${`Delete ${name}?`} action=${`Delete the ${what}`} typed=${status.messages_spooled > 0 ? name : ""} onSubmit=${remove} onClose=${onClose}>
    <${Loss} ...${{ what, name, status }} vpn=${status.vpn} verb="holds" />
    <p>The ${what} is deleted with all that it holds, and its consumers are unbound. Messages for it will be refused or go nowhere.</p>
  <//>`;
}
