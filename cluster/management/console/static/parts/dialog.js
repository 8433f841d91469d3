// Dialogs: modal, with the focus inside, closed by Escape; and the question before something that cannot be taken back.

import { html, useLayoutEffect, useRef, useState } from "../vendor/preact-htm.js";
import { Button, Field, goOn, useId, useWork } from "./controls.js";
import { Refusal } from "./notices.js";

/** A dialog that is there as long as it is rendered; `onClose` is to take it away. The focus goes back where it was. */
export function Dialog({ title, onClose, children, wide }) {
  const element = useRef(null);
  const id = useId();
  useLayoutEffect(() => {
    const before = document.activeElement;
    const dialog = element.current;
    dialog.showModal();
    // What one came for has the focus, and where that would be a deletion, the way out of it.
    (dialog.querySelector("form :is(input, select, textarea)") ?? dialog.querySelector("footer button"))?.focus();
    return () => {
      // What lies behind a modal dialog takes no focus.
      dialog.close();
      before?.focus?.();
      // What opened it may be disabled by now.
      setTimeout(() => document.activeElement === document.body && goOn(before));
    };
  }, []);
  const cancelled = (event) => {
    event.preventDefault();
    onClose();
  };
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} aria-labelledby=${id} onCancel=${cancelled}>
    <header><h2 id=${id}>${title}</h2><button type="button" class="close" aria-label="Close" onClick=${onClose}>×</button></header>
    ${children}
  </dialog>`;
}

/** A form in a dialog: `onSubmit` does the work; when it is done the dialog closes, a refusal is shown in it. */
export function FormDialog({ title, action, danger, onSubmit, onClose, ready = true, children, wide }) {
  const work = useWork();
  async function submit(event) {
    event.preventDefault();
    if (ready && (await work.run(onSubmit))) onClose();
  }
  return html`<${Dialog} title=${title} onClose=${onClose} wide=${wide}>
    <form onSubmit=${submit}>
      ${children}
      <${Refusal} problem=${work.problem} />
      <footer>
        <${Button} onClick=${onClose}>Cancel<//>
        <button type="submit" class=${danger ? "danger" : "primary"} disabled=${!ready || work.busy}>${work.busy ? "Working …" : action}</button>
      </footer>
    </form>
  <//>`;
}

/** A question before something destructive: `children` names what will happen; with `typed` this text has to be typed. */
export function Question({ title, action, typed, onSubmit, onClose, children }) {
  const [said, setSaid] = useState("");
  return html`<${FormDialog} title=${title} action=${action} danger onSubmit=${onSubmit} onClose=${onClose} ready=${!typed || said === typed}>
    ${children}
    ${typed && html`<${Field} label=${html`Type <b>${typed}</b> to go on`} value=${said} onInput=${setSaid} autocomplete="off" />`}
  <//>`;
}
