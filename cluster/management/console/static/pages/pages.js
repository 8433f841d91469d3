// Every page: its first piece of the address, how many pieces come behind it, where the menu has it, and who may see it.

import { Overview } from "./overview.js";
import { Queue } from "./queue.js";
import { Queues } from "./queues.js";

export const PAGES = [
  { path: "", title: "Overview", group: "Node", view: Overview },
  { path: "queues", title: "Queues", group: "Messages", view: Queues },
  { path: "queue", pieces: [2], menu: "queues", view: Queue },
];
