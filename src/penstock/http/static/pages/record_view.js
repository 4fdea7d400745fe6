// Shows keys, values and headers: as text, as JSON, or as bytes.

import { fill, h } from "../dom.js";
import { bytes } from "../format.js";

const SHORT = 160;
const LONG = 200000;

export function toBytes(data) {
  if (data === null) return null;
  if (data.text !== undefined) return new TextEncoder().encode(data.text);
  return Uint8Array.from(atob(data.base64), (each) => each.charCodeAt(0));
}

// One line for a table.
export function short(data) {
  if (data === null) return "null";
  const text = data.text ?? `${data.base64.length} characters of base64: ${data.base64}`;
  return text.length > SHORT ? `${text.slice(0, SHORT)}…` : text;
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

// A key or value with buttons for its views. JSON is shown as such if it is JSON.
export function dataView(title, data) {
  if (data === null) return h("div", {}, h("strong", {}, title), " null");
  const parsed = data.text === undefined ? null : json(data);
  const raw = toBytes(data);
  const views = {};
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
  return h("div", {}, h("div", { class: "bar" }, h("strong", {}, title), h("span", { class: "calm" }, bytes(raw.length)), buttons), place);
}
