// Small things that pages are made of: buttons, fields, badges, figures, and what looks after a request of a form.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact-htm.js";
import { time } from "./format.js";

let fields = 0;

/** Give an id that no other element has. */
export function useId() {
  const id = useRef("");
  if (!id.current) {
    fields += 1;
    id.current = `field-${fields}`;
  }
  return id.current;
}

/** A field with its label; `type` is that of an input, or "textarea" or "select" with `options` [value, label]. */
export function Field({ label, hint, type = "text", value, onInput, options, wide, hideLabel, ...more }) {
  const id = useId();
  const told = { id, value, ...more, ...(hint ? { "aria-describedby": `${id}-hint` } : {}) };
  const changed = (event) => onInput(type === "checkbox" ? event.currentTarget.checked : event.currentTarget.value);
  let control;
  if (type === "select") {
    control = html`<select ...${told} onChange=${changed}>
      ${options.map(([one, text]) => html`<option key=${one} value=${one} selected=${one === value}>${text}</option>`)}
    </select>`;
  } else if (type === "textarea") {
    control = html`<textarea ...${told} spellcheck=${false} onInput=${changed}></textarea>`;
  } else if (type === "checkbox") {
    return html`<div class="field check">
      <input ...${told} type="checkbox" value="on" checked=${value} onChange=${changed} /><label for=${id}>${label}</label>
      ${hint && html`<p class="hint" id=${`${id}-hint`}>${hint}</p>`}
    </div>`;
  } else {
    control = html`<input ...${told} type=${type} spellcheck=${false} autocapitalize="off" onInput=${changed} />`;
  }
  return html`<div class=${`field${wide ? " wide" : ""}`}>
    <label for=${id} class=${hideLabel ? "unseen" : ""}>${label}</label>${control}
    ${hint && html`<p class="hint" id=${`${id}-hint`}>${hint}</p>`}
  </div>`;
}

export function Button({ kind = "", children, disabled = false, ...more }) {
  const element = useRef(null);
  useLayoutEffect(() => {
    if (disabled && document.activeElement === element.current) goOn(element.current);
  }, [disabled]);
  return html`<button ref=${element} type="button" class=${kind} disabled=${disabled} ...${more}>${children}</button>`;
}

/** Give the focus of what cannot have it any more to what is near: who works by keyboard does not begin anew. */
export function goOn(element) {
  const places = [element.parentElement, element.closest("section"), document.querySelector("main")];
  const found = places.map((place) => place?.querySelector("a[href], :is(button, input, select, textarea):enabled"));
  found.find(Boolean)?.focus();
}

/** Say in one word how something does; `mood` is good, bad, warn or quiet. */
export function Badge({ mood = "quiet", children }) {
  return html`<span class=${`badge ${mood}`}>${children}</span>`;
}

/** A figure with what it is. */
export function Figure({ label, value, note, mood = "", children }) {
  return html`<div class=${`figure ${mood}`}>
    <dt>${label}</dt>
    <dd>${value}${note && html`<span class="note">${note}</span>`}</dd>
    ${children}
  </div>`;
}

/** Names and values, one row each; values that are null are left out. */
export function Facts({ rows }) {
  return html`<dl class="facts">
    ${rows.filter(([, value]) => value !== null && value !== undefined).map(
      ([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`,
    )}
  </dl>`;
}

/** A wall time, with its day and zone for who points at it. */
export function Moment({ value }) {
  const moment = new Date(value);
  const exact = Number.isNaN(moment.getTime()) ? String(value) : moment.toISOString();
  return html`<time datetime=${exact} title=${exact}>${time(value)}</time>`;
}

export function Panel({ title, actions, children, id, wide }) {
  return html`<section class=${`panel${wide ? " wide" : ""}`} id=${id} aria-labelledby=${`${id}-title`}>
    <header><h2 id=${`${id}-title`}>${title}</h2>${actions && html`<div class="actions">${actions}</div>`}</header>
    ${children}
  </section>`;
}

/** The head of a page: its title, and what can be done. */
export function Head({ title, note, actions, children }) {
  useEffect(() => {
    document.title = `${title} – Angarium`;
  }, [title]);
  return html`<div class="head">
    <div><h1>${title}</h1>${note && html`<p class="quiet">${note}</p>`}</div>
    ${actions && html`<div class="actions">${actions}</div>`}
    ${children}
  </div>`;
}

/** What a form does: {busy, problem, run}; `run(work)` does it unless something is being done. */
export function useWork() {
  const [state, setState] = useState({ busy: false, problem: null });
  async function run(work) {
    if (state.busy) return false;
    setState({ busy: true, problem: null });
    try {
      await work();
      setState({ busy: false, problem: null });
      return true;
    } catch (problem) {
      setState({ busy: false, problem });
      return false;
    }
  }
  return { ...state, run };
}
