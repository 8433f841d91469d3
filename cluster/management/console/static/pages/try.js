// Publishing and subscribing by hand, as a client username: what a client would see.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { change } from "../node/api.js";
import { streamOf } from "../node/streams.js";
import { may } from "../node/rights.js";
import { Badge, Button, Field, Head, Panel, useWork } from "../parts/controls.js";
import { payload, size, text } from "../parts/format.js";
import { NameField } from "../parts/names.js";
import { Nothing, Refusal, notify } from "../parts/notices.js";
import { Table } from "../parts/table.js";
import { useVpns } from "../parts/vpns.js";

const SHOWN_MAX = 200;
const PAYLOAD_MAX = 400;

export function Try({ me, query }) {
  const vpns = useVpns();
  const [vpn, setVpn] = useState(query.vpn ?? (me.vpn || "default"));
  const [username, setUsername] = useState("default");
  const [password, setPassword] = useState("");
  if (!may(me, "operator", vpn)) return html`<${Head} title="Try it" /><${Nothing}>It takes the role operator.<//>`;
  const who = { username, password };
  return html`
    <${Head} title="Try it" note="As a client of the node: with the rights of a client username, by the way that all messages take" />
    <${Panel} id="who" title="As">
      <form class="row" onSubmit=${(event) => event.preventDefault()}>
        ${vpns.length > 1 && html`<${Field} type="select" label="Message VPN" value=${vpn} onInput=${setVpn} options=${vpns.map((one) => [one, one])} />`}
        <${NameField} label="Client username" pieces=${["vpns", vpn, "usernames"]} value=${username} onInput=${setUsername} />
        <${Field} type="password" label="Its password" value=${password} onInput=${setPassword} autocomplete="off" placeholder="none" />
      </form>
    <//>
    <div class="columns uneven">
      <${Publish} ...${{ vpn, who }} queue=${query.queue ?? ""} />
      <${Subscribe} ...${{ vpn, who }} />
    </div>`;
}

function Publish({ vpn, who, queue }) {
  const [where, setWhere] = useState(queue ? "queue" : "topic");
  const [target, setTarget] = useState(queue || "demo/hello");
  const [body, setBody] = useState('{"hello": "world"}');
  const [isGuaranteed, setGuaranteed] = useState(true);
  const [properties, setProperties] = useState("");
  const work = useWork();
  const submit = (event) => {
    event.preventDefault();
    work.run(async () => {
      const pairs = properties.split("\n").filter(Boolean).map((line) => line.split(/=(.*)/s).slice(0, 2));
      await change("POST", ["vpns", vpn, "try", "publish"], {
        ...who, [where]: target, payload: body, guaranteed: isGuaranteed, properties: Object.fromEntries(pairs.map(([name, value = ""]) => [name, value])),
      });
      notify(`Published to ${target}`);
    });
  };
  return html`<${Panel} id="publish" title="Publish">
    <form class="stack" onSubmit=${submit}>
      <div class="row">
        <${Field} type="select" label="To a" value=${where} onInput=${setWhere} options=${[["topic", "Topic"], ["queue", "Queue"]]} />
        ${where === "topic"
          ? html`<${Field} label="Topic" value=${target} onInput=${setTarget} required autocomplete="off" />`
          : html`<${NameField} label="Queue" pieces=${["vpns", vpn, "queues"]} value=${target} onInput=${setTarget} required />`}
      </div>
      <${Field} type="textarea" label="Payload" rows="5" value=${body} onInput=${setBody} />
      <${Field} type="textarea" label="Properties" rows="2" value=${properties} onInput=${setProperties} hint="One a line: colour=red" />
      <${Field} type="checkbox" label="Guaranteed: done when every queue that takes it has stored it" value=${isGuaranteed} onInput=${setGuaranteed} />
      <${Refusal} problem=${work.problem} />
      <div><button type="submit" class="primary" disabled=${work.busy}>${work.busy ? "Publishing …" : "Publish"}</button></div>
    </form>
  <//>`;
}

const COLUMNS = [
  { name: "time", title: "Time", show: (row) => html`<time>${row.time}</time>` },
  { name: "topic", title: "Topic", main: true, show: (row) => html`<code>${row.topic}</code>` },
  { name: "payload", title: "Payload", show: (row) => html`<code>${row.body}</code>${row.told && html`<br /><span class="quiet">${row.told}</span>`}` },
  { name: "size", title: "Size", number: true, minor: true, show: (row) => size(row.size_bytes) },
  { name: "mode", title: "Mode", minor: true, show: (row) => html`<${Badge}>${row.guaranteed ? "guaranteed" : "direct"}<//>` },
];

function Subscribe({ vpn, who }) {
  const [filters, setFilters] = useState("demo/>");
  const [messages, setMessages] = useState([]);
  const [dropped, setDropped] = useState(0);
  const [state, setState] = useState("off");
  const [problem, setProblem] = useState(null);
  const ending = useRef(null);
  const number = useRef(0);
  useEffect(() => () => ending.current?.abort(), []);

  function heard(kind, data) {
    if (kind === "dropped") return setDropped((before) => before + data.dropped);
    if (kind === "end") return setProblem(data);
    number.current += 1;
    const body = payload(data.payload);
    const told = Object.entries(data.properties).map(([name, value]) => `${name}=${text(value)}`).join("  ");
    const row = { ...data, number: number.current, time: new Date().toTimeString().slice(0, 8), body: body.text.slice(0, PAYLOAD_MAX), told };
    return setMessages((before) => [row, ...before].slice(0, SHOWN_MAX));
  }
  async function submit(event) {
    event.preventDefault();
    const aborting = new AbortController();
    ending.current = aborting;
    setProblem(null);
    setState("opening");
    try {
      const body = { ...who, filters: filters.split("\n").map((line) => line.trim()).filter(Boolean) };
      await streamOf(["vpns", vpn, "try", "subscribe"], { method: "POST", body, signal: aborting.signal, onOpen: () => setState("on"), onEvent: heard });
    } catch (refused) {
      if (!aborting.signal.aborted) setProblem(refused);
    }
    setState("off");
  }
  return html`<${Panel} id="subscribe" title="Subscribe" actions=${state === "on" && html`<${Badge} mood="good">listening<//>`}>
    <form class="stack" onSubmit=${submit}>
      <${Field} type="textarea" label="Filters" rows="2" value=${filters} onInput=${setFilters} hint="One a line, as in orders/*/new or orders/>" />
      <${Refusal} problem=${problem} />
      <div class="actions">
        ${state === "off" ? html`<button type="submit" class="primary">Subscribe</button>` : html`<${Button} onClick=${() => ending.current.abort()}>Stop<//>`}
        <${Button} disabled=${!messages.length} onClick=${() => setMessages([])}>Clear<//>
      </div>
    </form>
    <div aria-live="polite">
      <${Table} caption="Messages, the newest first" columns=${COLUMNS} rows=${messages} keyOf=${(row) => row.number} empty=${state === "on" ? "Nothing came yet." : "Not subscribed."} />
      ${dropped > 0 && html`<p class="quiet">${dropped} messages came faster than this page reads, and are not shown.</p>`}
    </div>
  <//>`;
}
