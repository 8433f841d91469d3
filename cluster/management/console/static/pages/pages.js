// Every page: its first piece of the address, how many pieces come behind it, where the menu has it, and who may see it.
// `role` is the least one; `ofNode` says that one Message VPN is not enough.

import { Access } from "./access.js";
import { Audit } from "./audit.js";
import { Client, Clients } from "./clients.js";
import { Dead } from "./dead.js";
import { Events } from "./events.js";
import { Bridges, Gateways, Webhooks } from "./gateways.js";
import { Links } from "./links.js";
import { KINDS, objectPage, objectsPage } from "./objects.js";
import { Overview } from "./overview.js";
import { Plan } from "./plan.js";
import { Queue, TopicEndpoint } from "./queue.js";
import { Queues, TopicEndpoints } from "./queues.js";
import { Try } from "./try.js";

/** Pages of a kind of objects: the list, and one of them. */
const ofKind = (plural, more = {}) => [
  { path: plural, title: KINDS[plural].title, group: "Access", view: objectsPage(plural), ...more },
  { path: plural, pieces: [KINDS[plural].ofNode ? 1 : 2], menu: plural, view: objectPage(plural) },
];

export const PAGES = [
  { path: "", title: "Overview", group: "Node", view: Overview },
  { path: "clients", title: "Clients", group: "Node", view: Clients },
  { path: "client", pieces: [2], menu: "clients", view: Client },
  { path: "links", title: "Links", group: "Node", role: "viewer", ofNode: true, view: Links },
  { path: "gateways", title: "Gateways", group: "Node", role: "viewer", ofNode: true, view: Gateways },
  { path: "queues", title: "Queues", group: "Messages", view: Queues },
  { path: "queue", pieces: [2], menu: "queues", view: Queue },
  { path: "topic-endpoints", title: "Topic endpoints", group: "Messages", view: TopicEndpoints },
  { path: "topic-endpoint", pieces: [2], menu: "topic-endpoints", view: TopicEndpoint },
  { path: "dead", title: "Dead messages", group: "Messages", view: Dead },
  { path: "try", title: "Try it", group: "Messages", role: "operator", view: Try },
  { path: "webhooks", title: "Webhooks", group: "Messages", view: Webhooks },
  { path: "bridges", title: "Bridges", group: "Messages", view: Bridges },
  { path: "access", title: "Access check", group: "Access", view: Access },
  ...ofKind("usernames"),
  ...ofKind("acls"),
  ...ofKind("profiles"),
  ...ofKind("templates"),
  ...ofKind("vpns"),
  ...ofKind("operators", { role: "administrator", ofNode: true }),
  { path: "plan", title: "Configuration plan", group: "Access", role: "administrator", view: Plan },
  { path: "events", title: "Events", group: "Watching", view: Events },
  { path: "audit", title: "Audit log", group: "Watching", role: "administrator", ofNode: true, view: Audit },
];
