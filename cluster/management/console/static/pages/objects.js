// Objects that say who may do what, and what is allowed: usernames, ACL profiles, client profiles, templates, Message VPNs,
// operators. Each kind has a list; an object shows its attributes, and is changed and deleted there.

import { html, useState } from "../vendor/preact-htm.js";
import { change } from "../node/api.js";
import { may } from "../node/rights.js";
import { Attributes } from "../parts/attributes.js";
import { Badge, Button, Field, Head } from "../parts/controls.js";
import { FormDialog, Question } from "../parts/dialog.js";
import { counted } from "../parts/format.js";
import { List } from "../parts/list.js";
import { notify } from "../parts/notices.js";
import { Link } from "../parts/route.js";
import { VpnFilter, useVpns } from "../parts/vpns.js";

const yes = (value) => (value ? "yes" : "no");
const enabled = { name: "enabled", title: "Enabled", sort: "enabled", show: (row) => html`<${Badge} mood=${row.enabled ? "good" : "warn"}>${yes(row.enabled)}<//>` };
const column = (name, title) => ({ name, title, sort: name, show: (row) => row[name] || "–" });
const list = (name, title) => ({ name, title, minor: true, show: (row) => (row[name].length ? counted(row[name].length, "exception") : "–") });

/** By the first piece of the address; `changes` is the least role. */
export const KINDS = {
  usernames: {
    title: "Client usernames", one: "username", changes: "administrator", columns: [enabled, column("acl_profile", "ACL profile"), column("client_profile", "Client profile"), { name: "password_set", title: "Password", show: (row) => (row.password_set ? "set" : html`<${Badge} mood="warn">none<//>`) }],
  },
  acls: {
    title: "ACL profiles", one: "ACL profile", changes: "administrator", columns: [column("client_connect_default", "Connect"), column("publish_topic_default", "Publish"), list("publish_topic_exceptions", "but"), column("subscribe_topic_default", "Subscribe"), list("subscribe_topic_exceptions", "but")],
  },
  profiles: {
    title: "Client profiles", one: "client profile", changes: "administrator", columns: [{ name: "send", title: "Guaranteed send", show: (row) => yes(row.allow_guaranteed_send) }, { name: "receive", title: "Receive", show: (row) => yes(row.allow_guaranteed_receive) }, { name: "create", title: "Make endpoints", show: (row) => yes(row.allow_endpoint_create) }],
  },
  templates: { title: "Templates", one: "template", changes: "operator", columns: [column("access_type", "Access"), column("dead_message_queue", "Dead messages")] },
  vpns: { title: "Message VPNs", one: "Message VPN", changes: "administrator", ofNode: true, columns: [enabled, { name: "spool", title: "Quota", number: true, sort: "max_spool_usage_mb", show: (row) => `${row.max_spool_usage_mb} MB` }] },
  operators: { title: "Operators", one: "operator", changes: "administrator", ofNode: true, columns: [enabled, column("role", "Role"), column("vpn", "Message VPN"), { name: "password_set", title: "Password", show: (row) => (row.password_set ? "set" : "none") }, column("certificate_name", "Certificate"), column("token_subject", "Token")] },
};

const placeOf = (plural, vpn, name) => (KINDS[plural].ofNode ? [plural, name] : ["vpns", vpn, plural, name]);

export const objectsPage = (plural) => (props) => html`<${Objects} ...${props} plural=${plural} />`;
export const objectPage = (plural) => (props) => html`<${One} ...${props} plural=${plural} />`;

function Objects({ me, query, plural }) {
  const kind = KINDS[plural];
  const vpns = useVpns();
  const [isMaking, setMaking] = useState(false);
  const vpn = query.vpn || me.vpn;
  const shown = [
    { name: "name", title: "Name", main: true, sort: "name", show: (row) => html`<${Link} path=${kind.ofNode ? [plural, row.name] : [plural, row.vpn, row.name]}>${row.name}<//>` },
    ...(kind.ofNode || vpns.length < 2 ? [] : [column("vpn", "Message VPN")]),
    ...kind.columns,
  ];
  const mayMake = may(me, kind.changes, kind.ofNode ? "" : vpn || me.vpn);
  return html`
    <${Head} title=${kind.title} actions=${mayMake && html`<${Button} kind="primary" onClick=${() => setMaking(true)}>New ${kind.one}<//>`} />
    <${List} caption=${kind.title} pieces=${vpn && !kind.ofNode ? ["vpns", vpn, plural] : [plural]} columns=${shown} search="Find by name" sort="name" keyOf=${(row) => `${row.vpn ?? ""}/${row.name}`} empty="None.">
      ${!kind.ofNode && html`<${VpnFilter} vpns=${vpns} value=${query.vpn ?? ""} path=${[plural]} query=${query} />`}
    <//>
    ${isMaking && html`<${New} ...${{ kind, plural, vpns, vpn: vpn || "default" }} onClose=${() => setMaking(false)} />`}`;
}

function New({ kind, plural, vpns, vpn: first, onClose }) {
  const [vpn, setVpn] = useState(first);
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const hasPassword = ["usernames", "operators"].includes(plural);
  async function make() {
    const pieces = placeOf(plural, vpn, name);
    await change("POST", pieces.slice(0, -1), { name, ...(password ? { password } : {}) });
    notify(`${kind.one} ${name} was made`);
    location.hash = `#/${(kind.ofNode ? [plural, name] : [plural, vpn, name]).map(encodeURIComponent).join("/")}`;
  }
  return html`<${FormDialog} title=${`New ${kind.one}`} action="Make it" onSubmit=${make} onClose=${onClose} ready=${Boolean(name)}>
    ${!kind.ofNode && vpns.length > 1 && html`<${Field} type="select" label="Message VPN" value=${vpn} onInput=${setVpn} options=${vpns.map((one) => [one, one])} />`}
    <${Field} label="Name" value=${name} onInput=${setName} required autocomplete="off" />
    ${hasPassword && html`<${Field} type="password" label="Password" value=${password} onInput=${setPassword} autocomplete="new-password" hint="Its hash is stored; nobody is shown it" />`}
    <p class="quiet">Its attributes have their defaults, and are changed on its page.</p>
  <//>`;
}

function One({ me, args, plural }) {
  const kind = KINDS[plural];
  const [vpn, name] = kind.ofNode ? ["", args[0]] : args;
  const [asked, setAsked] = useState("");
  const pieces = placeOf(plural, vpn, name);
  const mayChange = may(me, kind.changes, vpn);
  const hasPassword = ["usernames", "operators"].includes(plural);
  async function remove() {
    await change("DELETE", pieces);
    notify(`${kind.one} ${name} was deleted`);
    location.hash = `#/${plural}`;
  }
  return html`
    <${Head} title=${name} note=${vpn ? `${kind.one} of Message VPN ${vpn}` : kind.one} actions=${html`
      ${plural === "usernames" && html`<${Link} class="button" path=${["access"]} query=${{ vpn, username: name }}>Check its access<//>`}
      ${mayChange && hasPassword && html`<${Button} onClick=${() => setAsked("password")}>New password<//>`}
      ${mayChange && html`<${Button} kind="danger" onClick=${() => setAsked("delete")}>Delete<//>`}`} />
    <${Attributes} pieces=${pieces} mayChange=${mayChange} title="Attributes" isOpen />
    ${asked === "password" && html`<${Password} ...${{ pieces, name }} onClose=${() => setAsked("")} />`}
    ${asked === "delete" && html`<${Question} title=${`Delete ${name}?`} action=${`Delete the ${kind.one}`} typed=${plural === "vpns" ? name : ""} onSubmit=${remove} onClose=${() => setAsked("")}>
      <p>The ${kind.one} <strong>${name}</strong>${vpn && html` of Message VPN <strong>${vpn}</strong>`} is deleted. ${WHAT_FOLLOWS[plural]}</p>
    <//>`}`;
}

/** What else a deletion means. */
const WHAT_FOLLOWS = {
  usernames: "Its clients are disconnected, and cannot log in any more.",
  acls: "Usernames that name it may do nothing until they name another one.",
  profiles: "Clients of usernames that name it cannot log in until they name another one.",
  templates: "Endpoints that were made by it stay as they are.",
  vpns: "So is everything in it: queues with their messages, usernames, profiles.",
  operators: "Who is logged in as it has no session any more.",
};

function Password({ pieces, name, onClose }) {
  const [password, setPassword] = useState("");
  async function save() {
    await change("PATCH", pieces, { password });
    notify(`${name} has another password`);
  }
  return html`<${FormDialog} title=${`New password of ${name}`} action="Set it" onSubmit=${save} onClose=${onClose} ready=${Boolean(password)}>
    <${Field} type="password" label="Password" value=${password} onInput=${setPassword} autocomplete="new-password" required />
    <p class="quiet">The one before is refused with the next login.</p>
  <//>`;
}
