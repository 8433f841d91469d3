// A field for the name of something that there is: while somebody types, the node tells the names that hold what was typed.

import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { page } from "../node/api.js";
import { Field, useId } from "./controls.js";
import { patternOf } from "./list.js";

const OFFERED_MAX = 20;
/** Names are asked for when nothing was typed for so long. */
const TYPING_MS = 250;

/** `pieces` is the path of the list that has the names; `except` is one that is not offered. */
export function NameField({ pieces, value, except = "", ...more }) {
  const id = useId();
  const [isEntered, setEntered] = useState(false);
  const [names, setNames] = useState([]);
  const place = pieces.join("\n");
  useEffect(() => {
    if (!isEntered) return undefined;
    const ending = new AbortController();
    const asked = { fields: "name", sort: "name", name: patternOf(value), limit: OFFERED_MAX };
    const timer = setTimeout(() => {
      // Without an answer nothing is offered: what was typed is as good.
      page(pieces, asked, { signal: ending.signal }).then(({ rows }) => setNames(rows.map((row) => row.name)), () => setNames([]));
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      ending.abort();
    };
  }, [isEntered, place, value]);
  return html`<${Field} ...${more} value=${value} list=${id} autocomplete="off" onFocus=${() => setEntered(true)} />
    <datalist id=${id}>${names.filter((name) => name !== except).map((name) => html`<option key=${name} value=${name} />`)}</datalist>`;
}
