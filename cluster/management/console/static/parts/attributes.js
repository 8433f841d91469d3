// The attributes of an object, and a form that changes them: only what was changed is sent, and only if nobody else has
// changed the object meanwhile (If-Match).

import { html, useState } from "../vendor/preact-htm.js";
import { at, send } from "../node/api.js";
import { describe } from "../node/described.js";
import { usePolling } from "../node/polling.js";
import { Button, Facts, Field, Panel, useWork } from "./controls.js";
import { FormDialog } from "./dialog.js";
import { text, words } from "./format.js";
import { NameField } from "./names.js";
import { Loading, Refusal, notify } from "./notices.js";
import { Link } from "./route.js";

/** What the node sets, or what names the object. */
const FIXED = new Set([
  "kind", "vpn", "name", "id", "generation", "created_by", "durable", "client", "homes", "client_subscriptions", "session", "topic", "selector",
  "password_set",
]);

/** Attributes that name something: the list that has it, and the first piece of the address of its page. */
const PLACES = {
  acl_profile: ["acls", "acls"], client_profile: ["profiles", "profiles"], owner: ["usernames", "usernames"], username: ["usernames", "usernames"],
  dead_message_queue: ["queues", "queue"], queue: ["queues", "queue"],
};

async function objectAt(pieces, signal) {
  const response = await send("GET", at(pieces), { signal });
  return { etag: response.headers.get("ETag"), object: await response.json() };
}

export function Attributes({ pieces, mayChange, title, onChange, isOpen = false }) {
  const [editing, setEditing] = useState(null);
  const work = useWork();
  const { value, problem, again } = usePolling(pieces.join("\n"), (signal) => objectAt(pieces, signal), 10_000);
  const shown = value ? Object.entries(value.object).filter(([name]) => !FIXED.has(name)) : [];
  // What each attribute may be is known before the form is there, so no field changes while somebody is in it.
  const edit = () => work.run(async () => setEditing({ ...value, about: await describe(value.object.kind) }));
  const close = () => {
    setEditing(null);
    again();
    onChange?.();
  };
  return html`<${Panel} id="attributes" title=${title} actions=${mayChange && value && html`<${Button} onClick=${edit}>Change<//>`}>
    <${Refusal} problem=${problem ?? work.problem} />
    ${value ? html`<details open=${isOpen || shown.length < 16}><summary>${shown.length} attributes</summary><${Facts} rows=${shown.map(([name, one]) => [html`<code>${name}</code>`, shownOf(one, name, value.object.vpn)])} /></details>` : !problem && html`<${Loading} />`}
    ${editing && html`<${Change} pieces=${pieces} ...${editing} onClose=${close} />`}
  <//>`;
}

function shownOf(value, name, vpn) {
  if (PLACES[name] && value) return html`<${Link} path=${[PLACES[name][1], vpn, value]}>${value}<//>`;
  if (Array.isArray(value)) return value.length ? html`<ul class="plain">${value.map((one) => html`<li key=${text(one)}><code>${text(one)}</code></li>`)}</ul>` : html`<span class="quiet">none</span>`;
  return value === "" ? html`<span class="quiet">empty</span>` : text(value);
}

const isPlain = (value) => ["string", "number", "boolean"].includes(typeof value) || (Array.isArray(value) && value.every((one) => typeof one === "string"));

function Change({ pieces, object, etag, about, onClose }) {
  const names = Object.keys(object).filter((name) => !FIXED.has(name) && isPlain(object[name]));
  const [values, setValues] = useState(Object.fromEntries(names.map((name) => [name, inForm(object[name])])));
  const [find, setFind] = useState("");
  const changed = names.filter((name) => values[name] !== inForm(object[name]));
  const shown = names.filter((name) => name.includes(find.trim().replaceAll(" ", "_").toLowerCase()) || changed.includes(name));
  async function save() {
    const body = Object.fromEntries(changed.map((name) => [name, outOfForm(values[name], object[name])]));
    await send("PATCH", at(pieces), { body, headers: { "If-Match": etag } });
    notify(`${object.name}: ${changed.join(", ")} changed`);
  }
  return html`<${FormDialog} title=${`Change ${object.name}`} action=${changed.length ? `Change ${changed.length}` : "Change"} ready=${changed.length > 0} onSubmit=${save} onClose=${onClose} wide>
    ${names.length > 8 && html`<${Field} type="search" label="Find an attribute" value=${find} onInput=${setFind} />`}
    <div class="attributes">
      ${shown.map((name) => html`<${Attribute} key=${name} name=${name} vpn=${object.vpn} about=${about[name] ?? {}} was=${object[name]} value=${values[name]} onInput=${(value) => setValues({ ...values, [name]: value })} />`)}
    </div>
  <//>`;
}

function Attribute({ name, vpn, about, was, value, onInput }) {
  const told = { label: words(name), hint: about.description, value, onInput };
  if (about.enum) return html`<${Field} type="select" ...${told} options=${about.enum.map((one) => [one, one])} />`;
  if (typeof was === "boolean") return html`<${Field} type="checkbox" ...${told} />`;
  if (Array.isArray(was)) return html`<${Field} type="textarea" rows="4" ...${told} hint=${["One a line.", about.description].filter(Boolean).join(" ")} wide />`;
  if (typeof was === "number") return html`<${Field} type="number" ...${told} min=${about.minimum} max=${about.maximum} required />`;
  if (PLACES[name] && vpn) return html`<${NameField} ...${told} pieces=${["vpns", vpn, PLACES[name][0]]} maxlength=${about.maxLength} />`;
  return html`<${Field} ...${told} maxlength=${about.maxLength} autocomplete="off" />`;
}

function inForm(value) {
  if (typeof value === "boolean") return value;
  return Array.isArray(value) ? value.join("\n") : String(value);
}

function outOfForm(value, was) {
  if (typeof was === "number") return Number(value);
  if (Array.isArray(was)) return value.split("\n").map((line) => line.trim()).filter(Boolean);
  return value;
}
