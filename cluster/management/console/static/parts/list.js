// A list that the node pages, sorts and filters: what is asked for stands in the address, so it can be sent to somebody.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { page } from "../node/api.js";
import { usePolling } from "../node/polling.js";
import { Button, Field } from "./controls.js";
import { count } from "./format.js";
import { Loading, Refusal } from "./notices.js";
import { go, useRoute } from "./route.js";
import { Table } from "./table.js";

const PAGE_ROWS = 50;
/** A filter is sent when nothing was typed for so long. */
const TYPING_MS = 250;

/**
 * Show pages of a list.
 *
 * pieces: of the path of the resource. query: what is asked for with every page (fields, filter). columns: as of `Table`.
 * search: label of the field that filters by name, "" for none. sort: of the first view. children: more filters.
 */
export function List({ caption, pieces, query = {}, columns, search = "", sort: usual = "", empty, keyOf, children, onRows }) {
  const route = useRoute();
  const sort = route.query.sort ?? usual;
  const name = route.query.name ?? "";
  const place = JSON.stringify([pieces, query, sort, name]);
  // Cursors of the pages that were seen, of this place.
  const [seen, setSeen] = useState({ place, cursors: [""] });
  const cursors = seen.place === place ? seen.cursors : [""];
  const after = cursors.at(-1);
  const asked = { ...query, sort, limit: PAGE_ROWS, after, name: patternOf(name) };
  const { value, problem, isOld } = usePolling(JSON.stringify([pieces, asked]), (signal) => page(pieces, asked, { signal }));
  useEffect(() => {
    if (value && !isOld) onRows?.(value.rows);
  }, [value]);
  const show = (more) => go(route.path, { ...route.query, ...more });
  const turn = (next) => setSeen({ place, cursors: next });

  const first = (cursors.length - 1) * PAGE_ROWS;
  return html`<div class="list" aria-busy=${isOld}>
    <div class="filters">
      ${search && html`<${Search} label=${search} value=${name} onChange=${(text) => show({ name: text })} />`}
      ${children}
    </div>
    <${Refusal} problem=${problem} />
    ${value ? html`
      <${Table} ...${{ caption, columns, keyOf, sort, empty }} rows=${value.rows} onSort=${(next) => show({ sort: next })} />
      <div class="pages">
        <p aria-live="polite">${value.rows.length ? `${count(first + 1)}–${count(first + value.rows.length)} of ${count(value.total)}` : "0"}</p>
        <${Button} disabled=${cursors.length < 2} onClick=${() => turn(cursors.slice(0, -1))}>Previous<//>
        <${Button} disabled=${!value.after || isOld} onClick=${() => turn([...cursors, value.after])}>Next<//>
      </div>` : !problem && html`<${Loading} />`}
  </div>`;
}

/** What is typed is found anywhere in a name, unless it says where with * or ?. */
export function patternOf(text) {
  return !text || /[*?]/.test(text) ? text : `*${text}*`;
}

export function Search({ label, value, onChange, placeholder = "part of a name, or a pattern with * and ?" }) {
  const [text, setText] = useState(value);
  const timer = useRef(0);
  useEffect(() => setText(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const typed = (next) => {
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(next), TYPING_MS);
  };
  return html`<${Field} type="search" label=${label} value=${text} onInput=${typed} placeholder=${placeholder} />`;
}
