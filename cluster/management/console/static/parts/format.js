// Numbers, sizes and times as people read them. Everything else that a node says is shown as it is.

const NUMBER = new Intl.NumberFormat("en");
const FINE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const two = (value) => String(value).padStart(2, "0");

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return isNumber(value) ? NUMBER.format(Math.round(value)) : "–";
}

/** 1 message, 2 messages. */
export function counted(value, word) {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}

export function rate(value) {
  if (!isNumber(value)) return "–";
  return `${value >= 10 ? count(value) : FINE.format(value)}/s`;
}

export function size(value) {
  if (!isNumber(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let rest = value;
  let place = 0;
  while (Math.abs(rest) >= 1_024 && place < units.length - 1) {
    rest /= 1_024;
    place += 1;
  }
  return `${place === 0 || rest >= 100 ? count(rest) : FINE.format(rest)} ${units[place]}`;
}

export function sizeRate(value) {
  return isNumber(value) ? `${size(value)}/s` : "–";
}

/** Seconds as 45 s, 12 min, 3 h 20 min, 5 d 2 h. */
export function span(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** How long ago a wall time in milliseconds was. */
export function since(ms) {
  return ms ? span(Math.max(0, (Date.now() - ms) / 1_000)) : "–";
}

/** A wall time: 18:40:52 today, 2031-05-04 18:40:52 on other days. */
export function time(value) {
  const moment = new Date(value);
  if (Number.isNaN(moment.getTime())) return String(value ?? "");
  const clock = [moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(two).join(":");
  const day = [moment.getFullYear(), moment.getMonth() + 1, moment.getDate()].map(two).join("-");
  return moment.toDateString() === new Date().toDateString() ? clock : `${day} ${clock}`;
}

/** Give any value as a text: a text as it is, else as JSON. */
export function text(value) {
  if (value === null || value === undefined) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** messages_in_per_s -> Messages in per s. */
export function words(name) {
  const said = String(name).replaceAll("_", " ");
  return said.charAt(0).toUpperCase() + said.slice(1);
}

/** Give bytes that are base64 as a text, if they are one: {text, isText}; else as hexadecimal digits. */
export function payload(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  try {
    return { text: new TextDecoder("utf-8", { fatal: true }).decode(bytes), isText: true, bytes: bytes.length };
  } catch {
    const digits = [...bytes.slice(0, 4_096)].map((byte) => byte.toString(16).padStart(2, "0"));
    return { text: digits.join(" "), isText: false, bytes: bytes.length };
  }
}
