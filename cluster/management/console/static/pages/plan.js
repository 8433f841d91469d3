// A configuration file: what it would change, and changing it, all or nothing.

import { html, useState } from "../vendor/preact-htm.js";
import { change, run } from "../node/api.js";
import { Badge, Button, Field, Head, Panel, useId, useWork } from "../parts/controls.js";
import { Question } from "../parts/dialog.js";
import { counted, text } from "../parts/format.js";
import { Refusal, notify } from "../parts/notices.js";
import { Table } from "../parts/table.js";

const MOODS = { create: "good", update: "warn", delete: "bad" };
/** Long enough for a thousand objects. */
const WAIT = { headers: { Prefer: "wait=120" }, signal: undefined };
const DELETED_MAX = 20;

const COLUMNS = [
  { name: "action", title: "Action", show: (row) => html`<${Badge} mood=${MOODS[row.action]}>${row.action}<//>` },
  { name: "kind", title: "Kind", show: (row) => row.kind },
  { name: "vpn", title: "Message VPN", minor: true, show: (row) => row.vpn || "–" },
  { name: "name", title: "Name", main: true, show: (row) => row.name },
  { name: "changes", title: "Changes", show: (row) => html`<${Changes} changes=${row.changes} />` },
];

function Changes({ changes }) {
  const found = Object.entries(changes ?? {});
  return found.length ? html`<ul class="plain">${found.map(([name, [before, after]]) => html`<li key=${name}><code>${name}: ${text(before)} → ${text(after)}</code></li>`)}</ul>` : "–";
}

export function Plan() {
  const [source, setSource] = useState("");
  const [isPruning, setPruning] = useState(false);
  const [plan, setPlan] = useState(null);
  const [isAsked, setAsked] = useState(false);
  const work = useWork();
  const file = useId();
  const write = (next) => {
    setSource(next);
    setPlan(null);
  };
  const read = async (event) => {
    const [chosen] = event.currentTarget.files;
    if (chosen) write(await chosen.text());
  };
  const ask = () => work.run(async () => {
    const { objects } = await change("POST", ["config", "parse"], { text: source });
    const rows = await run("config.apply", { objects, dry_run: true, prune: isPruning }, WAIT);
    setPlan({ objects, rows: rows.filter((row) => row.action !== "unchanged") });
  });
  async function apply() {
    const done = await run("config.apply", { objects: plan.objects, prune: isPruning }, WAIT);
    notify(`${counted(done.filter((row) => row.action !== "unchanged").length, "object")} changed`);
    setPlan({ ...plan, rows: [], isDone: true });
  }
  const gone = plan?.rows.filter((row) => row.action === "delete") ?? [];
  return html`
    <${Head} title="Configuration plan" note="What a file of objects would change, as angarium config plan shows it" />
    <${Panel} id="file" title="File">
      <div class="filters">
        <div class="field"><label for=${file}>Choose a file</label><input id=${file} type="file" accept=".toml,text/plain" onChange=${read} /></div>
      </div>
      <${Field} type="textarea" label="Or paste one" rows="12" value=${source} onInput=${write} wide hint="TOML, as angarium config export prints it. A file that names other files is applied with angarium config apply." />
      <div class="filters below">
        <${Field} type="checkbox" label="Also delete what the file does not name (prune)" value=${isPruning} onInput=${(next) => { setPruning(next); setPlan(null); }} />
        <button type="button" class="primary" disabled=${!source.trim() || work.busy} onClick=${ask}>${work.busy ? "Planning …" : "Plan"}</button>
      </div>
      <${Refusal} problem=${work.problem} />
    <//>
    <div aria-live="polite">
      ${plan && html`<${Panel} id="plan" title=${plan.isDone ? "Applied" : `Plan: ${counted(plan.rows.length, "change")}`}
          actions=${plan.rows.length > 0 && html`<${Button} kind=${gone.length ? "danger" : "primary"} onClick=${() => setAsked(true)}>Apply ${counted(plan.rows.length, "change")}<//>`}>
        <${Table} caption="Changes" columns=${COLUMNS} rows=${plan.rows} keyOf=${(row) => `${row.kind} ${row.vpn} ${row.name}`} empty="The node is as the file says." /><//>`}
    </div>
    ${isAsked && html`<${Question} title=${`Apply ${counted(plan.rows.length, "change")}?`} action="Apply" onSubmit=${apply} onClose=${() => setAsked(false)}>
      <p>All of them are made in one step, or none. ${gone.length > 0 && html`<strong>${counted(gone.length, "object")} ${gone.length === 1 ? "is" : "are"} deleted with all that they hold:</strong>`}</p>
      ${gone.length > 0 && html`<ul class="plain">${gone.slice(0, DELETED_MAX).map((row) => html`<li key=${row.kind + row.name}>${row.kind} ${row.name}</li>`)}${gone.length > DELETED_MAX && html`<li>and ${gone.length - DELETED_MAX} more</li>`}</ul>`}
    <//>`}`;
}
