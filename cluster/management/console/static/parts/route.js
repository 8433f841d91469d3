// Where one is: #/queues/default/orders?sort=-bind_count has a path of pieces and a query. Pieces are percent-encoded, so a
// name may have anything in it.

import { html, useLayoutEffect, useState } from "../vendor/preact-htm.js";

function decoded(piece) {
  try {
    return decodeURIComponent(piece);
  } catch {
    return piece;
  }
}

export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { path: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(query)) };
}

/** Give the address of a place; what is empty in the query is left out. */
export function to(path, query = {}) {
  const told = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  const text = told.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Change what is seen of a place, without another step of the browser's history. */
export function go(path, query) {
  history.replaceState(null, "", to(path, query));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
  const [route, setRoute] = useState(here);
  // Not an effect after the first picture: who clicks as soon as he sees something would not be heard.
  useLayoutEffect(() => {
    const changed = () => setRoute(here());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

export function Link({ path, query, children, ...more }) {
  return html`<a href=${to(path, query)} ...${more}>${children}</a>`;
}
