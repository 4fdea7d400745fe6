// Shows keys, values and headers: as the node has decoded them, as text, as JSON, or as bytes.

import { fill, h } from "../dom.js";
import { bytes } from "../format.js";

const SHORT = 160;
const LONG = 200000;
export const VIEWS = { auto: "by schema", text: "text", json: "JSON", avro: "Avro", protobuf: "Protobuf", bytes: "bytes" };

export function toBytes(data) {
  if (data === null) return null;
  if (data.text !== undefined) return new TextEncoder().encode(data.text);
  return Uint8Array.from(atob(data.base64), (each) => each.charCodeAt(0));
}

// One line for a table.
export function short(data) {
  if (data === null) return "null";
  const text = data.decoded !== undefined ? JSON.stringify(data.decoded) : data.text ?? `${data.base64.length} characters of base64: ${data.base64}`;
  const cut = text.length > SHORT ? `${text.slice(0, SHORT)}…` : text;
  return data.problem ? `⚠ ${cut}` : cut;
}

function hex(data) {
  const found = [];
  for (let start = 0; start < Math.min(data.length, 16384); start += 16) {
    const part = data.slice(start, start + 16);
    const codes = [...part].map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const letters = [...part].map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    found.push(`${start.toString(16).padStart(6, "0")}  ${codes.padEnd(47)}  ${letters}`);
  }
  if (data.length > 16384) found.push(`… and ${data.length - 16384} more bytes`);
  return found.join("\n");
}

function json(data) {
  try {
    return JSON.stringify(JSON.parse(data.text), null, 2);
  } catch {
    return null;
  }
}

// A key or value with buttons for its views: what the node has decoded first, then JSON if it is JSON, text and bytes.
export function dataView(title, data) {
  if (data === null) return h("div", {}, h("strong", {}, title), " null");
  const parsed = data.text === undefined ? null : json(data);
  const raw = toBytes(data);
  const views = {};
  if (data.decoded !== undefined) views[VIEWS[data.view]] = () => h("pre", { class: "value" }, JSON.stringify(data.decoded, null, 2).slice(0, LONG));
  if (parsed !== null) views.JSON = () => h("pre", { class: "value" }, parsed.slice(0, LONG));
  if (data.text !== undefined) views.text = () => h("pre", { class: "value" }, data.text.slice(0, LONG));
  views.hex = () => h("pre", { class: "value hex" }, hex(raw));
  const place = h("div", {});
  const buttons = Object.entries(views).map(([name, view]) => h("button", { type: "button", onclick: () => choose(name, view) }, name));
  const choose = (name, view) => {
    fill(place, view());
    for (const each of buttons) each.setAttribute("aria-pressed", String(each.textContent === name));
  };
  choose(...Object.entries(views)[0]);
  const origin = data.schema ? `${bytes(raw.length)} · schema ${data.schema}` : bytes(raw.length);
  const problem = data.problem ? h("p", { class: "problem" }, data.problem) : null;
  return h("div", {}, h("div", { class: "bar" }, h("strong", {}, title), h("span", { class: "calm" }, origin), buttons), problem, place);
}
