// Moving, copying and redriving messages: jobs of the node, whose progress is shown until they are done.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { change } from "../node/api.js";
import { useStream } from "../node/streams.js";
import { Button, Field, useWork } from "../parts/controls.js";
import { Dialog } from "../parts/dialog.js";
import { count, counted } from "../parts/format.js";
import { NameField } from "../parts/names.js";
import { Refusal } from "../parts/notices.js";

const DONE = { move: "moved", copy: "copied", redrive: "moved back" };

/** `chosen`: positions of the messages that are meant, in one partition; null: all, or those that a selector selects, which is `first` one. */
export function Transfer({ pieces, held, chosen = null, first = "", partition = "", vpn, name, isRedrive, onClose }) {
  const [verb, setVerb] = useState(isRedrive ? "redrive" : "move");
  const [target, setTarget] = useState("");
  const [selector, setSelector] = useState(first);
  const [limit, setLimit] = useState("");
  const [jobs, setJobs] = useState(null);
  const work = useWork();
  const submit = (event) => {
    event.preventDefault();
    work.run(async () => {
      const which = chosen ? { positions: chosen, ...(partition ? { partition: Number(partition) } : {}) } : { ...(selector ? { selector } : {}), ...(limit ? { limit: Number(limit) } : {}), ...(partition ? { partition: Number(partition) } : {}) };
      const body = { ...(isRedrive ? {} : { target }), ...which };
      setJobs((await change("POST", [...pieces, verb], body)).jobs);
    });
  };
  const title = isRedrive ? `Redrive ${name}` : `Move or copy messages of ${name}`;
  const which = chosen ? (chosen.length === 1 ? "The chosen message" : `The ${count(chosen.length)} chosen messages`) : meant({ held, selector, limit, partition });
  const happens = {
    move: `${which} will leave ${name} and go to ${target || "the target"}. At any moment each is in one of the two.`,
    copy: `${which} will go to ${target || "the target"} too, and stay in ${name}.`,
    redrive: `${which} will go back to the endpoint that each came from. What came from nowhere stays.`,
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    ${jobs ? html`<${Progress} ...${{ jobs, verb, onClose, wanted: chosen?.length ?? 0 }} />` : html`<form onSubmit=${submit}>
      ${!isRedrive && html`
        <${Field} type="select" label="What to do" value=${verb} onInput=${setVerb} options=${[["move", "Move: they leave here"], ["copy", "Copy: they stay here too"]]} />
        <${NameField} label="To the queue" pieces=${["vpns", vpn, "queues"]} value=${target} onInput=${setTarget} required except=${name} hint=${`A queue of Message VPN ${vpn}`} />`}
      ${!chosen && html`
        <${Field} label="Selector" value=${selector} onInput=${setSelector} hint="Only messages that it selects; empty: all" autocomplete="off" />
        <${Field} label="At most" type="number" min="1" value=${limit} onInput=${setLimit} hint="Messages; empty: all that are there now" />`}
      <p class="happens" aria-live="polite">${happens[verb]}</p>
      <${Refusal} problem=${work.problem} />
      <footer><${Button} onClick=${onClose}>Cancel<//><button type="submit" class="primary" disabled=${work.busy}>${{ move: "Move", copy: "Copy", redrive: "Redrive" }[verb]}</button></footer>
    </form>`}
  <//>`;
}

/** All of its 7 messages; At most 5 of those among its 7 messages that the selector selects. */
function meant({ held, selector, limit, partition }) {
  const some = limit ? `At most ${count(Number(limit))}` : "All";
  const there = partition ? `the messages of partition ${partition}` : `its ${counted(held, "message")}`;
  return selector ? `${some} of those among ${there} that the selector selects` : `${some} of ${there}`;
}

/** How far jobs are, as the node says each time that it changes; without a job there is nothing to do. */
function Progress({ jobs, verb, wanted, onClose }) {
  const path = jobs.map((job) => job.join("-")).join(",");
  const [value, setValue] = useState(null);
  // The form that had the focus is gone.
  const close = useRef(null);
  useEffect(() => close.current.focus(), []);
  const isOver = jobs.length === 0 || (value !== null && value.state !== "running");
  const problem = useStream(!isOver ? ["jobs", path] : null, {}, (kind, told) => kind === "message" && setValue(told));
  const done = value?.done ?? 0;
  const missing = isOver && value ? wanted - done - value.refused - value.kept : 0;
  const rest = [value?.refused && `${count(value.refused)} refused`, value?.kept && `${count(value.kept)} stay`, missing > 0 && `${count(missing)} not there any more, or with a consumer`].filter(Boolean).join(", ");
  return html`
    <progress max=${value?.total || 1} value=${value ? done : undefined} aria-label="Progress"></progress>
    <p role="status" aria-live="polite">${counted(done, "message")} ${DONE[verb]}${rest ? `; ${rest}` : ""}${isOver ? "." : " so far …"}</p>
    <${Refusal} problem=${(isOver ? null : problem) ?? (value?.error ? { title: value.error[1], code: value.error[0] } : null)} />
    <footer><button ref=${close} type="button" class="primary" onClick=${onClose}>Close</button></footer>`;
}
