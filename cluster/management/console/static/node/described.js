// What the node says of its objects: of each attribute its type, range, choices and a sentence, as in the OpenAPI document.

import { get } from "./api.js";

let schemas = null;

/** Give the attributes of a kind of object, by their names; the document is asked for once. */
export async function describe(kind) {
  schemas ??= (await get(["openapi.json"])).components.schemas;
  const name = kind.split("-").map((word) => word[0].toUpperCase() + word.slice(1)).join("");
  return schemas[name].properties;
}
