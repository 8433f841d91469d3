// Logging in, with what the node offers: a name and a password always, other ways where its answer lists them.

import { html, useEffect, useLayoutEffect, useState } from "../vendor/preact-htm.js";
import { logIn, ways } from "../node/api.js";
import { Field, useWork } from "../parts/controls.js";
import { Refusal } from "../parts/notices.js";

export function Login({ problem, onLogin }) {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [offered, setOffered] = useState(null);
  const work = useWork();
  // Before anything is painted: later it would take the focus from somebody who types already.
  useLayoutEffect(() => {
    document.title = "Log in – Angarium";
    document.querySelector("main.login input")?.focus();
  }, []);
  useEffect(() => {
    // Without an answer there is a name and a password still.
    ways().then(setOffered, () => {});
  }, []);
  const submit = (event) => {
    event.preventDefault();
    work.run(async () => onLogin(await logIn(name, password)));
  };
  return html`<main class="login">
    <h1><img src=${new URL("../icon.svg", import.meta.url).pathname} alt="" width="32" height="32" />Angarium</h1>
    <form onSubmit=${submit}>
      ${problem && html`<p class="quiet">The session is over. Log in again.</p>`}
      <${Field} label="Operator" name="name" value=${name} onInput=${setName} autocomplete="username" required />
      <${Field} label="Password" name="password" type="password" value=${password} onInput=${setPassword} autocomplete="current-password" required />
      <${Refusal} problem=${work.problem} />
      <button type="submit" class="primary" disabled=${work.busy}>${work.busy ? "Logging in …" : "Log in"}</button>
    </form>
    ${offered?.oidc && html`<a class="button" href=${offered.oidc.path}>${offered.oidc.label}</a>`}
    <p class="quiet">An operator is made on the host of the node: <code>angarium operator create</code></p>
  </main>`;
}
