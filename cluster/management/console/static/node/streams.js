// Streams of events (Server-Sent Events) by fetch, which says the token of the session and shows refusals; EventSource can do
// neither.

import { useEffect, useRef, useState } from "../vendor/preact-htm.js";
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

/** Between the end of a stream and the next one; after each refusal twice as long, up to the longest. */
const AGAIN_MS = 1_000;
const LONGEST_MS = 30_000;

/**
 * Follow a stream while the page is seen: `onEvent` gets each event. It goes on where it was. Without pieces there is none. Gives
 * the last refusal, or null.
 */
export function useStream(pieces, query, onEvent) {
  const [problem, setProblem] = useState(null);
  const latest = useRef(onEvent);
  latest.current = onEvent;
  const key = JSON.stringify([pieces, query]);
  useEffect(() => {
    if (!pieces) return undefined;
    let ending = new AbortController();
    let timer = 0;
    let last = "";
    let failures = 0;

    async function follow() {
      clearTimeout(timer);
      if (document.hidden) return;
      ending = new AbortController();
      const { signal } = ending;
      try {
        const heard = (kind, data, id) => {
          last = id || last;
          if (kind === "end") setProblem(data);
          else latest.current(kind, data);
        };
        const opened = () => {
          failures = 0;
          setProblem(null);
        };
        await streamOf(pieces, { query, signal, last, onOpen: opened, onEvent: heard });
      } catch (refused) {
        if (signal.aborted) return;
        failures += 1;
        setProblem(refused);
      }
      if (!signal.aborted) timer = setTimeout(follow, Math.min(LONGEST_MS, AGAIN_MS * 2 ** Math.min(failures, 6)));
    }
    function seen() {
      ending.abort();
      follow();
    }
    document.addEventListener("visibilitychange", seen);
    follow();
    return () => {
      ending.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [key]);
  return problem;
}
