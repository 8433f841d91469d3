// The messages of an endpoint: browsing takes nothing from it. Positions are those of a partition.

import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { change, get } from "../node/api.js";
import { usePolling } from "../node/polling.js";
import { may } from "../node/rights.js";
import { Badge, Button, Facts, Field, Moment, Panel } from "../parts/controls.js";
import { Dialog, Question } from "../parts/dialog.js";
import { count, counted, payload, size, text, time, words } from "../parts/format.js";
import { Loading, Refusal, notify } from "../parts/notices.js";
import { Search } from "../parts/list.js";
import { Table } from "../parts/table.js";
import { Transfer } from "./transfer.js";

const PAGE_ROWS = 25;

export function Messages({ me, vpn, name, pieces, partitions, held, selector, setSelector }) {
  const [partition, setPartition] = useState("0");
  const [cursors, setCursors] = useState([0]);
  const [chosen, setChosen] = useState(new Set());
  const [shown, setShown] = useState(null);
  const [asked, setAsked] = useState("");
  // One more than is shown: whether there is a next page.
  const query = { limit: PAGE_ROWS + 1, after: cursors.at(-1), selector, partition: partitions ? partition : "" };
  const { value, problem, isOld, again } = usePolling(JSON.stringify([pieces, query]), (signal) => get([...pieces, "messages"], query, { signal }), 5_000);
  const works = may(me, "operator", vpn);
  const found = value?.messages ?? [];
  const rows = found.slice(0, PAGE_ROWS);
  const hasNext = found.length > PAGE_ROWS;
  const isLeft = value !== undefined && !isOld && !rows.length && cursors.length > 1;
  // What was on the page is gone, and so is what was behind it.
  useEffect(() => {
    if (isLeft) setCursors(cursors.slice(0, -1));
  }, [isLeft]);
  const elsewhere = (change) => {
    setCursors([0]);
    setChosen(new Set());
    change();
  };
  const choose = (position) => {
    const next = new Set(chosen);
    if (!next.delete(position)) next.add(position);
    setChosen(next);
  };
  async function remove() {
    const { deleted } = await change("POST", [...pieces, "messages", "delete"], { positions, ...(partitions ? { partition: Number(partition) } : {}) });
    notify(`${counted(deleted, "message")} deleted from ${name}`);
    setChosen(new Set());
    again();
  }
  const positions = [...chosen].sort((one, other) => one - other);
  // Without chosen ones, all that the selector selects, also those of other pages.
  const fits = !chosen.size && Boolean(selector) && !problem && rows.length > 0;
  const which = chosen.size ? counted(chosen.size, "message") : fits ? "all selected" : "chosen";
  const isAll = rows.length > 0 && rows.every((row) => chosen.has(row.position));
  const chooseAll = () => {
    const next = new Set(chosen);
    for (const { position } of rows) isAll ? next.delete(position) : next.add(position);
    setChosen(next);
  };
  const transferred = () => {
    setAsked("");
    setChosen(new Set());
    again();
  };
  const actions = works && html`
    <${Button} disabled=${!chosen.size && !fits} onClick=${() => setAsked("move")}>Move ${which}<//>
    <${Button} disabled=${!chosen.size && !fits} onClick=${() => setAsked("redrive")}>Redrive ${which}<//>
    <${Button} kind="danger" disabled=${!chosen.size} onClick=${() => setAsked("delete")}>Delete ${chosen.size ? which : "chosen"}<//>`;
  return html`<${Panel} id="messages" title="Messages" actions=${actions}>
    <div class="filters">
      <${Search} label="Selector" value=${selector} onChange=${(next) => elsewhere(() => setSelector(next))} placeholder="colour = 'red' AND JMSPriority > 3" />
      ${partitions > 0 && html`<${Field} type="select" label="Partition" value=${partition} onInput=${(next) => elsewhere(() => setPartition(next))}
        options=${Array.from({ length: partitions }, (_, index) => [String(index), String(index)])} />`}
    </div>
    <${Refusal} problem=${problem} />
    ${value ? html`
      <div aria-busy=${isOld}><${Table} caption=${`Messages of ${name}, the oldest first`} columns=${columnsOf({ works, chosen, choose, isAll, chooseAll, setShown })} rows=${rows} keyOf=${(row) => row.position} empty=${selector ? "No such messages." : "No messages."} /></div>
      <div class="pages">
        <p aria-live="polite">${counted(rows.length, "message")} on this page, the oldest first${hasNext || cursors.length < 2 ? "" : "; there are no more"}</p>
        <${Button} disabled=${cursors.length < 2} onClick=${() => setCursors(cursors.slice(0, -1))}>Previous<//>
        <${Button} disabled=${!hasNext || isOld} onClick=${() => setCursors([...cursors, rows.at(-1).position])}>Next<//>
      </div>` : !problem && html`<${Loading} />`}
    ${shown !== null && html`<${Message} ...${{ pieces, position: shown, partition: partitions ? partition : "" }} onClose=${() => setShown(null)} />`}
    ${(asked === "move" || asked === "redrive") && html`<${Transfer} ...${{ pieces, vpn, name }} chosen=${chosen.size ? positions : null} first=${selector} held=${held} partition=${partitions ? partition : ""} isRedrive=${asked === "redrive"} onClose=${transferred} />`}
    ${asked === "delete" && html`<${Question} title=${`Delete ${counted(chosen.size, "message")}?`} action=${`Delete ${counted(chosen.size, "message")}`} onSubmit=${remove} onClose=${() => setAsked("")}>
      <p>${counted(chosen.size, "message")} of <strong>${name}</strong> ${chosen.size === 1 ? "is" : "are"} deleted for good: position ${positions.join(", ")}.</p>
    <//>`}
  <//>`;
}

function columnsOf({ works, chosen, choose, isAll, chooseAll, setShown }) {
  const all = html`<input type="checkbox" aria-label="Choose all of this page" checked=${isAll} onChange=${chooseAll} />`;
  const box = { name: "box", title: all, show: (row) => html`<input type="checkbox" aria-label=${`Choose message ${row.position}`} checked=${chosen.has(row.position)} onChange=${() => choose(row.position)} />` };
  const position = (row) => (works ? html`<button type="button" class="link" aria-label=${`Show message ${row.position}`} onClick=${() => setShown(row.position)}>${count(row.position)}</button>` : count(row.position));
  return [
    ...(works ? [box] : []),
    { name: "position", title: "Position", number: true, main: true, show: position },
    { name: "topic", title: "Topic", show: (row) => html`<code>${row.topic}</code>` },
    { name: "size", title: "Size", number: true, minor: true, show: (row) => size(row.size_bytes) },
    { name: "stored", title: "Stored", show: (row) => html`<${Moment} value=${row.stored_ms} />` },
    { name: "state", title: "State", show: (row) => html`<${Badge}>${row.state}<//>` },
    { name: "redeliveries", title: "Redelivered", number: true, minor: true, show: (row) => count(row.redeliveries) },
    { name: "priority", title: "Priority", number: true, minor: true, show: (row) => count(row.priority) },
    { name: "expires", title: "Expires", minor: true, show: (row) => (row.expires_ms ? time(row.expires_ms) : "–") },
    { name: "origin", title: "Came from", minor: true, show: (row) => originOf(row.origin) },
  ];
}

/** Of a message that was moved: from where. */
export function originOf(origin) {
  if (!origin) return "–";
  return Array.isArray(origin) ? origin.filter((one) => typeof one === "string").join(" ") : text(origin.name ?? origin);
}

function Message({ pieces, position, partition, onClose }) {
  const { value, problem } = usePolling(`${position}`, (signal) => get([...pieces, "messages", String(position)], { partition }, { signal }), 0);
  return html`<${Dialog} title=${`Message ${position}`} onClose=${onClose} wide>
    <${Refusal} problem=${problem} />
    ${value ? html`<${Content} message=${value} />` : !problem && html`<${Loading} />`}
    <footer><${Button} onClick=${onClose}>Close<//></footer>
  <//>`;
}

export function Content({ message }) {
  const { text: body, isText, bytes } = payload(message.payload);
  const said = (values) => Object.entries(values ?? {}).map(([name, value]) => [name, html`<code>${text(value)}</code>`]);
  const rows = [
    ["Topic", html`<code>${message.topic}</code>`],
    ["Stored", time(message.stored_ms)],
    ["State", message.state],
    ["Priority", count(message.priority)],
    ["Redelivered", count(message.redeliveries)],
    ["Expires", message.expires_ms ? time(message.expires_ms) : null],
    ["Came from", message.origin ? originOf(message.origin) : null],
    ...said(message.headers).map(([name, value]) => [words(name), value]),
    ...said(message.user_properties),
  ];
  return html`<${Facts} rows=${rows} />
    <h3>Payload <span class="quiet">${size(bytes)}${isText ? "" : ", no UTF-8: its bytes"}</span></h3>
    <pre tabindex="0" aria-label="Payload">${pretty(body, isText)}</pre>`;
}

function pretty(body, isText) {
  if (!isText || !/^\s*[[{]/.test(body)) return body;
  try {
    return JSON.stringify(JSON.parse(body), null, 2);
  } catch {
    return body;
  }
}
