// What an operator may do, so that a page shows no button that the node would refuse. The node judges; this only hides.

const ROLES = ["viewer", "operator", "administrator"];

/** Tell whether somebody has at least a role: in a Message VPN, or ("") for the whole node. */
export function may(me, role, vpn = "") {
  const inScope = !me.vpn || me.vpn === vpn;
  return inScope && ROLES.indexOf(me.role) >= ROLES.indexOf(role);
}
