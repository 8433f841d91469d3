// Dead messages: the queues that they went to, and those that lost them; what links could not deliver.

import { html } from "../vendor/preact-htm.js";
import { page, run } from "../node/api.js";
import { usePolling } from "../node/polling.js";
import { Head, Panel } from "../parts/controls.js";
import { count, since, size } from "../parts/format.js";
import { Loading, Refusal } from "../parts/notices.js";
import { Link } from "../parts/route.js";
import { Table } from "../parts/table.js";

const USUAL = "#DEAD_MSG_QUEUE";
const FIELDS = "vpn,name,messages_spooled,spool_usage_bytes,oldest_stored_ms,bind_count";
/** Queues that name another dead message queue are looked at up to so many; and of these queues up to so many are shown. */
const NAMED_MAX = 1_000;
const QUEUES_MAX = 20;

async function ask(me, signal) {
  const base = me.vpn ? ["vpns", me.vpn] : [];
  const named = { fields: "dead_message_queue", filter: [`dead_message_queue!=${USUAL}`, "dead_message_queue!="], limit: NAMED_MAX };
  const others = await Promise.all(["queues", "topic-endpoints"].map((kind) => page([...base, kind], named, { signal })));
  const names = [...new Set([USUAL, ...others.flatMap(({ rows }) => rows.map((row) => row.dead_message_queue))])].slice(0, QUEUES_MAX);
  const found = await Promise.all(names.map((name) => page([...base, "queues"], { fields: FIELDS, name: exactly(name) }, { signal })));
  const links = me.vpn ? [] : await run("links.list", {}, { signal });
  return { queues: found.flatMap(({ rows }) => rows).sort((one, other) => other.messages_spooled - one.messages_spooled), links };
}

/** A pattern that has one name. */
export function exactly(name) {
  return name.replaceAll("[", "[[]").replaceAll("*", "[*]").replaceAll("?", "[?]");
}

export function Dead({ me }) {
  const { value, problem } = usePolling("dead", (signal) => ask(me, signal));
  if (!value) return problem ? html`<${Refusal} problem=${problem} />` : html`<${Loading} />`;
  const queues = [
    { name: "name", title: "Dead message queue", main: true, show: (row) => html`<${Link} path=${["queue", row.vpn, row.name]}>${row.name}<//>` },
    { name: "vpn", title: "Message VPN", show: (row) => row.vpn },
    { name: "messages", title: "Messages", number: true, show: (row) => count(row.messages_spooled) },
    { name: "size", title: "Size", number: true, show: (row) => size(row.spool_usage_bytes) },
    { name: "oldest", title: "Oldest", number: true, show: (row) => since(row.oldest_stored_ms) },
    { name: "consumers", title: "Consumers", number: true, show: (row) => count(row.bind_count) },
  ];
  const links = [
    { name: "name", title: "Link to", main: true, show: (row) => row.name },
    { name: "dead", title: "Dead messages", number: true, show: (row) => count(row.dead_messages) },
    { name: "retry", title: "Tried again", number: true, show: (row) => count(row.retry_messages) },
  ];
  return html`
    <${Head} title="Dead messages" note="What no consumer took in time, or as often as it may be tried. Redrive sends a message back where it came from." />
    <${Refusal} problem=${problem} />
    <${Panel} id="queues" title="Dead message queues"><${Table} caption="Dead message queues" columns=${queues} rows=${value.queues} keyOf=${(row) => `${row.vpn}/${row.name}`} empty="There is none: dead messages are deleted." /><//>
    ${value.links.length > 0 && html`<${Panel} id="links" title="Of links"><${Table} caption="Dead messages of links" columns=${links} rows=${value.links} keyOf=${(row) => row.name} /><//>`}`;
}
