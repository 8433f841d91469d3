// The management API, as this page asks it: the same that everybody has. The browser sends the cookie of the session; this
// module knows the token that goes with each change. A refusal is thrown as a Problem, with the words of the node.

export const ROOT = "/api/v1";
/** How long an answer is waited for, beyond what the node waits itself. */
const TIMEOUT_MS = 20_000;
/** What took the node long to make for another console is good for this one too; after a change it is made anew. */
const RECENT = { "Cache-Control": "max-age=10" };

let token = "";
/** Called when the session is over. */
let onEnd = () => {};

/** A refusal: problem details (RFC 9457) of the node, or what kept the request from it. */
export class Problem extends Error {
  constructor({ status = 0, code = 0, title, detail = "", advice = "" }) {
    super(detail ? `${title}: ${detail}` : title);
    Object.assign(this, { status, code, title, detail, advice });
  }
}

export function whenSessionEnds(callback) {
  onEnd = callback;
}

async function problemOf(response) {
  try {
    const told = await response.json();
    return new Problem({ ...told, title: told.title ?? response.statusText });
  } catch {
    return new Problem({ status: response.status, title: response.statusText || `status ${response.status}` });
  }
}

/** Send a request and give the response, if it is no refusal; a body is sent as JSON. */
export async function send(method, path, { body, headers = {}, signal } = {}) {
  const told = { Accept: "application/json", ...headers };
  if (body !== undefined) told["Content-Type"] = "application/json";
  if (method !== "GET") told["Angarium-Token"] = token;
  const request = { method, headers: told, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin" };
  let response;
  try {
    response = await fetch(path, { ...request, redirect: "error", signal: signal ?? AbortSignal.timeout(TIMEOUT_MS) });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem({ title: "The node does not answer", detail: error.message, advice: "the page goes on trying" });
  }
  if (response.ok) return response;
  const problem = await problemOf(response);
  if (response.status === 401 && !path.endsWith("/login")) onEnd(problem);
  throw problem;
}

async function valueOf(response) {
  return response.status === 204 ? null : response.json();
}

/** Encode a name as a piece of a path; a browser would take the names . and .. for steps, whatever they are encoded as. */
function piece(name) {
  return encodeURIComponent(name === "." || name === ".." ? `?${name}` : name);
}

/** Give the address of a resource: pieces are names as they are, of a query what is not empty. */
export function at(pieces, query = {}) {
  const path = `${ROOT}/${pieces.map(piece).join("/")}`;
  const told = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== "" && one !== undefined && one !== null) told.append(name, one);
    }
  }
  const text = told.toString();
  return text ? `${path}?${text}` : path;
}

export async function get(pieces, query, options) {
  return valueOf(await send("GET", at(pieces, query), options));
}

/** Give what every console looks at; it may be of a moment ago. */
export function recent(pieces, options) {
  return get(pieces, {}, { headers: RECENT, ...options });
}

export async function change(method, pieces, body, options) {
  return valueOf(await send(method, at(pieces), { body, ...options }));
}

/** Do an operation of the admin API by its name. */
export async function run(operation, args = {}, options) {
  return valueOf(await send("POST", at(["operations", operation]), { body: args, ...options }));
}

/** Give a page of a list: its rows, how many there are on all pages, and the cursor of the next page ("" on the last). */
export async function page(pieces, query, options) {
  const response = await send("GET", at(pieces, query), { headers: RECENT, ...options });
  const next = /<([^>]*)>; rel="next"/.exec(response.headers.get("Link") ?? "");
  const after = next ? new URL(next[1], location.origin).searchParams.get("after") ?? "" : "";
  const rows = await response.json();
  return { rows, total: Number(response.headers.get("Total-Count") ?? rows.length), after };
}

// -- the session ---------------------------------------------------------------------------------------------------

/** Give who asks, if this browser has a session, or shows a certificate of an operator; null if it does neither. */
export async function resume() {
  try {
    token = (await get(["login"])).token;
    return await get(["me"]);
  } catch (problem) {
    if (problem.status !== 401) throw problem;
  }
  if ((await ways()).certificate === "none") return null;
  try {
    return await get(["me"]);
  } catch (problem) {
    if (problem.status === 401) return null;
    throw problem;
  }
}

/** Give which ways to log in the node offers: {password, token, certificate, oidc: {path, label} or null}. */
export function ways() {
  return get(["login", "ways"]);
}

export async function logIn(name, password) {
  token = (await change("POST", ["login"], { name, password })).token;
  return get(["me"]);
}

export async function logOut() {
  await change("POST", ["logout"]);
  token = "";
}
