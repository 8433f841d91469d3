// Tables: columns with a head each, which sorts where the node can; numbers stand below each other.

import { html } from "../vendor/preact-htm.js";
import { Nothing } from "./notices.js";

/**
 * Columns: {name, title, show(row), number, sort, main, minor}; `sort` is the column of the node, `main` is the head of the
 * row, `minor` columns are left out where there is little room.
 */
export function Table({ caption, columns, rows, keyOf, sort = "", onSort, empty = "None." }) {
  const classOf = (column) => [column.number && "number", column.minor && "minor"].filter(Boolean).join(" ");
  if (!rows.length) return html`<${Nothing}>${empty}<//>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="unseen">${caption}</caption>
      <thead><tr>${columns.map((column) => html`<${HeadCell} key=${column.name} ...${{ column, sort, onSort, classOf }} />`)}</tr></thead>
      <tbody>
        ${rows.map((row) => html`<tr key=${keyOf(row)}>
          ${columns.map((column) => column.main
            ? html`<th scope="row" class=${classOf(column)}>${column.show(row)}</th>`
            : html`<td class=${classOf(column)}>${column.show(row)}</td>`)}
        </tr>`)}
      </tbody>
    </table>
  </div>`;
}

function HeadCell({ column, sort, onSort, classOf }) {
  const isSorted = Boolean(column.sort) && (sort === column.sort || sort === `-${column.sort}`);
  const isDown = sort.startsWith("-");
  const order = isSorted ? (isDown ? "descending" : "ascending") : undefined;
  if (!column.sort || !onSort) return html`<th scope="col" class=${classOf(column)}>${column.title}</th>`;
  // Of numbers one wants the largest first.
  const next = isSorted ? (isDown ? column.sort : `-${column.sort}`) : column.number ? `-${column.sort}` : column.sort;
  return html`<th scope="col" class=${classOf(column)} aria-sort=${order}>
    <button type="button" class="sort" onClick=${() => onSort(next)}>${column.title}<span aria-hidden="true">${isSorted ? (isDown ? "▼" : "▲") : ""}</span></button>
  </th>`;
}
