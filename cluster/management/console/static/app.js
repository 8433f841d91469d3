// The frame of the console: who is logged in, where one is, and the page that belongs there.

import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./vendor/preact-htm.js";
import { logOut, resume, whenSessionEnds } from "./node/api.js";
import { forget } from "./node/rings.js";
import { may } from "./node/rights.js";
import { Button, useWork } from "./parts/controls.js";
import { Loading, Notices, Nothing, Refusal } from "./parts/notices.js";
import { Link, here, useRoute } from "./parts/route.js";
import { Login } from "./pages/login.js";
import { PAGES } from "./pages/pages.js";

function App() {
  const [session, setSession] = useState({ state: "asking" });
  async function ask() {
    try {
      const me = await resume();
      setSession(me ? { state: "in", me } : { state: "out" });
    } catch (problem) {
      setSession({ state: "failed", problem });
    }
  }
  useEffect(() => {
    whenSessionEnds((problem) => setSession((before) => (before.state === "in" ? { state: "out", problem } : before)));
    ask();
  }, []);
  const left = () => {
    forget();
    setSession({ state: "out" });
  };

  if (session.state === "asking") return html`<${Loading} />`;
  if (session.state === "failed") {
    return html`<main class="alone"><${Refusal} problem=${session.problem} /><${Button} onClick=${ask}>Try again<//></main>`;
  }
  if (session.state === "out") {
    return html`<${Login} problem=${session.problem} onLogin=${(me) => setSession({ state: "in", me })} />`;
  }
  return html`<${Frame} me=${session.me} onLeave=${left} />`;
}

function Frame({ me, onLeave }) {
  const route = useRoute();
  const [isOpen, setOpen] = useState(false);
  const main = useRef(null);
  const isFirst = useRef(true);
  const place = route.path.join("/");
  useEffect(() => {
    setOpen(false);
    // Who goes to another page by keyboard is at its beginning, and hears its name; at the first page the browser's own
    // order counts.
    if (!isFirst.current) main.current.focus();
    isFirst.current = false;
  }, [place]);
  const { page, args } = pageAt(route.path);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to the content</a>
    <${Top} me=${me} onLeave=${onLeave} isOpen=${isOpen} onMenu=${() => setOpen(!isOpen)} />
    <${Menu} me=${me} page=${page} isOpen=${isOpen} />
    <main id="main" ref=${main} tabindex="-1" aria-label=${args.at(-1) ?? page?.title}>
      <${Guard} key=${place}>
        ${page ? html`<${page.view} me=${me} args=${args} query=${route.query} />` : html`<${Nothing}>There is no such page.<//>`}
      <//>
    </main>
    <${Notices} />`;
}

/** A fault of one page leaves the others usable. */
function Guard({ children }) {
  const [fault] = useErrorBoundary((error) => console.error(error));
  return fault ? html`<${Refusal} problem=${fault} />` : children;
}

function pageAt(path) {
  const [first = "", ...args] = path;
  const page = PAGES.find((one) => one.path === first && (one.pieces ?? [0]).includes(args.length));
  return { page, args };
}

function Top({ me, onLeave, isOpen, onMenu }) {
  const work = useWork();
  return html`<header class="top">
    <button type="button" class="menu" aria-expanded=${isOpen} aria-controls="menu" onClick=${onMenu}>Menu</button>
    <a class="brand" href="#/"><${Mark} />Angarium</a>
    <p class="who"><span class="quiet">${me.vpn ? `${me.role} of ${me.vpn}` : me.role}</span> <strong>${me.name}</strong></p>
    <${Button} onClick=${() => work.run(async () => { await logOut(); onLeave(); })}>Log out<//>
  </header>`;
}

export function Mark() {
  return html`<svg class="mark" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="7" /><path d="M7 23 16 8l9 15M11.5 18.5h9" /></svg>`;
}

function Menu({ me, page, isOpen }) {
  const groups = [...new Set(PAGES.filter((one) => one.group).map((one) => one.group))];
  const shown = (group) => PAGES.filter((one) => one.group === group && (!one.role || may(me, one.role, one.ofNode ? "" : me.vpn)));
  return html`<nav id="menu" class=${isOpen ? "open" : ""} aria-label="Pages">
    ${groups.map((group) => [group, shown(group)]).filter(([, pages]) => pages.length).map(([group, pages]) => html`
      <div key=${group} class="group"><h2>${group}</h2><ul>
        ${pages.map((one) => html`<li key=${one.path}><${Link} path=${[one.path].filter(Boolean)} aria-current=${page?.menu === one.path || page === one ? "page" : undefined}>${one.title}<//></li>`)}
      </ul></div>`)}
  </nav>`;
}

if (!location.hash) history.replaceState(null, "", "#/");
here();
render(html`<${App} />`, document.getElementById("app"));
