// Asking again and again: while the page is seen, one request at a time, more slowly while the node does not answer.

import { useCallback, useEffect, useRef, useState } from "../vendor/preact-htm.js";

/** Between an answer and the next request. */
export const USUAL_MS = 3_000;
/** The longest wait after requests that failed, and after answers that took long. */
const SLOWEST_MS = 30_000;
/** What took long is asked for less often: a page has the node work for it a twentieth of the time. */
const PAUSE_PER_WORK = 20;

/** Give how long to wait after an answer that took so long. */
export function pauseAfter(tookMs, pauseMs) {
  return Math.min(SLOWEST_MS, Math.max(pauseMs, PAUSE_PER_WORK * tookMs));
}

/**
 * Call `ask(signal)` now, whenever `key` changes, and then again and again; with a pause of 0 until it is answered.
 *
 * Gives {value, problem, isOld, again}: the newest answer, the newest refusal (null after an answer), whether the answer is
 * of another key than the present one, and what asks at once.
 */
export function usePolling(key, ask, pauseMs = USUAL_MS) {
  const [state, setState] = useState({ key: undefined, value: undefined, problem: null });
  const latest = useRef(ask);
  latest.current = ask;
  const wake = useRef(() => {});

  useEffect(() => {
    const ending = new AbortController();
    let timer = 0;
    let failures = 0;
    let isAsking = false;
    let isWanted = false;

    async function turn() {
      clearTimeout(timer);
      if (document.hidden || ending.signal.aborted) return;
      if (isAsking) {
        isWanted = true;
        return;
      }
      isAsking = true;
      const began = performance.now();
      try {
        const value = await latest.current(AbortSignal.any([ending.signal, AbortSignal.timeout(20_000)]));
        failures = 0;
        if (!ending.signal.aborted) setState({ key, value, problem: null });
      } catch (problem) {
        failures += 1;
        if (!ending.signal.aborted) setState((before) => ({ ...before, problem }));
      }
      isAsking = false;
      if (ending.signal.aborted) return;
      const usual = failures ? Math.min(SLOWEST_MS, (pauseMs || USUAL_MS) * 2 ** Math.min(failures, 6)) : pauseAfter(performance.now() - began, pauseMs);
      const wait = isWanted ? 0 : usual;
      isWanted = false;
      if (pauseMs || failures) timer = setTimeout(turn, wait);
    }

    wake.current = turn;
    document.addEventListener("visibilitychange", turn);
    turn();
    return () => {
      ending.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", turn);
    };
  }, [key, pauseMs]);

  const again = useCallback(() => wake.current(), []);
  return { value: state.value, problem: state.problem, isOld: state.key !== key, again };
}
