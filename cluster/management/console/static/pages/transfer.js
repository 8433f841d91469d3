// Moving, copying and redriving messages: jobs of the node, whose progress is shown until they are done.

import { html, useState } from "../vendor/preact-htm.js";
import { change, get } from "../node/api.js";
import { usePolling } from "../node/polling.js";
import { Button, Field, useWork } from "../parts/controls.js";
import { Dialog } from "../parts/dialog.js";
import { count, counted } from "../parts/format.js";
import { Refusal } from "../parts/notices.js";

const DONE = { move: "moved", copy: "copied", redrive: "moved back" };

export function Transfer({ pieces, status, what, vpn, name, isRedrive, onClose }) {
  const [verb, setVerb] = useState(isRedrive ? "redrive" : "move");
  const [target, setTarget] = useState("");
  const [selector, setSelector] = useState("");
  const [limit, setLimit] = useState("");
  const [jobs, setJobs] = useState(null);
  const work = useWork();
  const submit = (event) => {
    event.preventDefault();
    work.run(async () => {
      const body = { ...(isRedrive ? {} : { target }), ...(selector ? { selector } : {}), ...(limit ? { limit: Number(limit) } : {}) };
      setJobs((await change("POST", [...pieces, verb], body)).jobs);
    });
  };
  const title = isRedrive ? `Redrive ${name}` : `Move or copy messages of ${name}`;
  const which = `${limit ? `At most ${count(Number(limit))}` : "All"} of its ${counted(status.messages_spooled, "message")}${selector ? " that the selector selects" : ""}`;
  const happens = {
    move: `${which} leave ${name} and go to ${target || "the target"}. Each is in one of both at any moment.`,
    copy: `${which} go to ${target || "the target"} too, and stay in ${name}.`,
    redrive: `${which} go back to the endpoint that each came from. What came from nowhere stays.`,
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    ${jobs ? html`<${Progress} ...${{ jobs, verb, onClose }} />` : html`<form onSubmit=${submit}>
      ${!isRedrive && html`
        <${Field} type="select" label="What to do" value=${verb} onInput=${setVerb} options=${[["move", "Move: they leave here"], ["copy", "Copy: they stay here too"]]} />
        <${Field} label="To the queue" value=${target} onInput=${setTarget} required autocomplete="off" hint=${`A queue of Message VPN ${vpn}`} />`}
      <${Field} label="Selector" value=${selector} onInput=${setSelector} hint="Only messages that it selects; empty: all" autocomplete="off" />
      <${Field} label="At most" type="number" min="1" value=${limit} onInput=${setLimit} hint="Messages; empty: all that are there now" />
      <p class="happens" aria-live="polite">${happens[verb]}</p>
      <${Refusal} problem=${work.problem} />
      <footer><${Button} onClick=${onClose}>Cancel<//><button type="submit" class="primary" disabled=${work.busy}>${{ move: "Move", copy: "Copy", redrive: "Redrive" }[verb]}</button></footer>
    </form>`}
  <//>`;
}

/** How far jobs are; a job of none has nothing to do. */
function Progress({ jobs, verb, onClose }) {
  const path = jobs.map((job) => job.join("-")).join(",");
  const [isOver, setOver] = useState(jobs.length === 0);
  const { value, problem } = usePolling(path, async (signal) => {
    const told = await get(["jobs", path], {}, { signal });
    setOver(told.state !== "running");
    return told;
  }, isOver ? 0 : 500);
  const done = value?.done ?? 0;
  const rest = [value?.refused && `${count(value.refused)} refused`, value?.kept && `${count(value.kept)} stay`].filter(Boolean).join(", ");
  return html`
    <progress max=${value?.total || 1} value=${value ? done : undefined} aria-label="Progress"></progress>
    <p role="status" aria-live="polite">${counted(done, "message")} ${DONE[verb]}${rest ? `; ${rest}` : ""}${isOver ? "." : " so far …"}</p>
    <${Refusal} problem=${problem ?? (value?.error ? { title: value.error[1], code: value.error[0] } : null)} />
    <footer><button type="button" class="primary" onClick=${onClose}>Close</button></footer>`;
}
