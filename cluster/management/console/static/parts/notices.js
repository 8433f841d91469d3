// What is said of a result: a refusal in the words of the node, and short notices that screen readers announce.

import { html, useEffect, useState } from "../vendor/preact-htm.js";

const SHOWN_MS = 8_000;
const NOTICES_MAX = 4;

let notices = [];
let show = () => {};
let number = 0;

/** Say that something was done. */
export function notify(text) {
  number += 1;
  const one = { id: number, text };
  notices = [...notices, one].slice(-NOTICES_MAX);
  show(notices);
  setTimeout(() => {
    notices = notices.filter((other) => other !== one);
    show(notices);
  }, SHOWN_MS);
}

/** Where notices appear; there is one, in the frame of the page. */
export function Notices() {
  const [shown, setShown] = useState(notices);
  useEffect(() => {
    show = setShown;
  }, []);
  return html`<div class="notices" role="status" aria-live="polite">
    ${shown.map((one) => html`<p key=${one.id}>${one.text}</p>`)}
  </div>`;
}

/** A refusal: title and detail of the problem, what to do next, and its code. */
export function Refusal({ problem }) {
  if (!problem) return null;
  return html`<div class="refusal" role="alert">
    <p><strong>${problem.title ?? "Fault of this page"}</strong>${(problem.detail || !problem.title) && html` – ${problem.detail || problem.message}`}</p>
    ${(problem.advice || problem.code) ? html`<p class="quiet">${problem.advice}${problem.code ? html` <span class="code">${problem.code}</span>` : ""}</p>` : null}
  </div>`;
}

/** What stands where nothing is. */
export function Nothing({ children }) {
  return html`<p class="nothing">${children}</p>`;
}

/** While the first answer is on its way. */
export function Loading() {
  return html`<p class="nothing" aria-busy="true">Loading …</p>`;
}
