// The Message VPNs that somebody may see; a node has few of them, and they hardly change.

import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { page } from "../node/api.js";
import { Field } from "./controls.js";
import { go } from "./route.js";

const VPNS_MAX = 1_000;

export function useVpns() {
  const [vpns, setVpns] = useState([]);
  useEffect(() => {
    let isThere = true;
    page(["vpns"], { fields: "name", limit: VPNS_MAX }).then(
      ({ rows }) => isThere && setVpns(rows.map((row) => row.name)),
      () => {},
    );
    return () => {
      isThere = false;
    };
  }, []);
  return vpns;
}

/** Chooses one of them, or all; what is chosen stands in the address. */
export function VpnFilter({ vpns, value, path, query }) {
  if (vpns.length < 2) return null;
  const options = [["", "all"], ...vpns.map((one) => [one, one])];
  return html`<${Field} type="select" label="Message VPN" value=${value} options=${options} onInput=${(vpn) => go(path, { ...query, vpn })} />`;
}
