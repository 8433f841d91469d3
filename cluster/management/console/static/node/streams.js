// Streams of events (Server-Sent Events) by fetch, which says the token of the session and shows refusals; EventSource can do
// neither.

import { at, send } from "./api.js";

/** A line is never longer than an event that the node sends. */
const BUFFER_MAX = 4 << 20;

/** Read a stream until it ends: `onOpen()` when its head is there, `onEvent(kind, data, id)` for each event. */
export async function streamOf(pieces, { query, method = "GET", body, signal, onOpen = () => {}, onEvent, last = "" }) {
  const headers = { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) };
  const response = await send(method, at(pieces, query), { body, headers, signal });
  if (response.status === 204) return;
  onOpen();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    if (rest.length > BUFFER_MAX) throw new Error("an event of the stream is too large");
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const text of events) tell(text, onEvent);
  }
}

function tell(text, onEvent) {
  const fields = {};
  for (const line of text.split("\n")) {
    const [, name, value] = /^(\w+): ?(.*)$/s.exec(line) ?? [];
    if (name) fields[name] = value;
  }
  if (fields.data !== undefined) onEvent(fields.event ?? "message", JSON.parse(fields.data), fields.id ?? "");
}
