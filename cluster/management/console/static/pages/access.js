// May somebody publish, subscribe or consume? The node answers by the rules that it judges clients by.

import { html, useState } from "../vendor/preact-htm.js";
import { run } from "../node/api.js";
import { Badge, Field, Head, Panel, useWork } from "../parts/controls.js";
import { NameField } from "../parts/names.js";
import { Refusal } from "../parts/notices.js";
import { Table } from "../parts/table.js";
import { useVpns } from "../parts/vpns.js";

const QUEUE = "#P2P/QUE/";
/** Verb of the form -> what is asked for, and what the field is called. */
const VERBS = {
  publish: ["Publish to a topic", "Topic"],
  "publish-queue": ["Publish to a queue", "Queue"],
  subscribe: ["Subscribe to a filter", "Filter"],
  consume: ["Consume a queue", "Queue"],
};

const COLUMNS = [
  { name: "ok", title: "Allows it", show: (row) => html`<${Badge} mood=${row.ok ? "good" : "bad"}>${row.ok ? "yes" : "no"}<//>` },
  { name: "name", title: "Rule", main: true, show: (row) => row.name },
  { name: "text", title: "Why", show: (row) => row.text },
];

export function Access({ me, query }) {
  const vpns = useVpns();
  const [vpn, setVpn] = useState(query.vpn ?? (me.vpn || "default"));
  const [name, setName] = useState(query.username ?? "default");
  const [verb, setVerb] = useState("publish");
  const [target, setTarget] = useState("");
  const [isGuaranteed, setGuaranteed] = useState(false);
  const [answer, setAnswer] = useState(null);
  const work = useWork();
  const submit = (event) => {
    event.preventDefault();
    work.run(async () => {
      const asked = { vpn, name, verb: verb.split("-")[0], target: verb === "publish-queue" ? QUEUE + target : target, guaranteed: isGuaranteed };
      setAnswer({ ...(await run("access.check", asked)), text: `${name}: ${VERBS[verb][0].toLowerCase()} ${target}` });
    });
  };
  const isPublishing = verb.startsWith("publish");
  return html`
    <${Head} title="Access check" note="What a client username may do, judged by the rules that clients are judged by" />
    <${Panel} id="question" title="Question">
      <form class="row" onSubmit=${submit}>
        ${vpns.length > 1 && html`<${Field} type="select" label="Message VPN" value=${vpn} onInput=${setVpn} options=${vpns.map((one) => [one, one])} />`}
        <${NameField} label="Client username" pieces=${["vpns", vpn, "usernames"]} value=${name} onInput=${setName} required />
        <${Field} type="select" label="Wants to" value=${verb} onInput=${setVerb} options=${Object.entries(VERBS).map(([one, [text]]) => [one, text])} />
        ${VERBS[verb][1] === "Queue"
          ? html`<${NameField} label="Queue" pieces=${["vpns", vpn, "queues"]} value=${target} onInput=${setTarget} required />`
          : html`<${Field} label=${VERBS[verb][1]} value=${target} onInput=${setTarget} required autocomplete="off" />`}
        ${isPublishing && html`<${Field} type="checkbox" label="Guaranteed" value=${isGuaranteed} onInput=${setGuaranteed} />`}
        <button type="submit" class="primary" disabled=${work.busy}>Check</button>
      </form>
      <${Refusal} problem=${work.problem} />
    <//>
    <div aria-live="polite">
      ${answer && html`<${Panel} id="answer" title=${html`<${Badge} mood=${answer.allowed ? "good" : "bad"}>${answer.allowed ? "Allowed" : "Refused"}<//> ${answer.text}`}>
        <${Table} caption="Rules that have a say" columns=${COLUMNS} rows=${answer.checks} keyOf=${(row) => `${row.name} ${row.text}`} /><//>`}
    </div>`;
}
