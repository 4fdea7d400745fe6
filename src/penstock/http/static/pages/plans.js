// Plans of moves: made with a dry run, shown, and carried out as an operation after a confirmation.

import { finished, send } from "../api.js";
import { info, note, shown } from "../dialog.js";
import { button, fill, h } from "../dom.js";
import { bytes, plural } from "../format.js";
import { Table } from "../table.js";

const NUMBERS = ["at_once", "throttle_bytes_per_second"];

export async function planDialog(title, where, body, fields = []) {
  const all = [
    ...fields,
    { name: "topics", label: "Only these topics", hint: "all topics, or names separated by commas" },
    { name: "at_once", label: "Moves at the same time", hint: "10" },
    { name: "throttle_bytes_per_second", label: "Limit in bytes per second and node", hint: "no limit" },
  ].filter((field) => field.name !== "topics" || !where.includes("/nodes/"));
  const inputs = all.map((field) => h("input", { name: field.name, placeholder: field.hint, required: field.required, autocomplete: "off" }));
  const place = h("div", {});
  const problem = h("p", { class: "problem", role: "alert" });
  const wanted = () => {
    const found = { ...body };
    all.forEach((field, at) => {
      const text = inputs[at].value.trim();
      if (!text) return;
      const several = text.split(",").map((each) => each.trim()).filter(Boolean);
      if (field.name === "nodes") found.nodes = several.map(Number);
      else if (field.name === "topics") found.topics = several;
      else found[field.name] = NUMBERS.includes(field.name) ? Number(text) : text;
    });
    return found;
  };
  const guarded = (work) => async () => {
    problem.textContent = "";
    try {
      await work();
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  const plan = guarded(async () => {
    const made = await finished(await send("POST", where, { ...wanted(), dry_run: true }));
    if (made.state === "failed") throw new Error(made.error);
    const { moves, elections = 0, cordoned = [] } = made.result;
    const total = moves.reduce((sum, each) => sum + (each.bytes || 0), 0);
    fill(place, h("p", {}, says(moves, elections, cordoned, total)), moves.length ? planTable(moves) : null);
    go.disabled = !moves.length && !elections && !cordoned.length;
  });
  const carryOut = guarded(async () => {
    go.disabled = true;
    const ended = await shown(await send("POST", where, wanted()), place);
    if (ended.state === "failed") throw new Error(ended.error);
    note(`${title}: ${ended.state}`);
    fill(place, h("p", {}, `The operation is ${ended.state}.`), ended.notes.map((each) => h("p", { class: "calm" }, each)));
  });
  const go = button("Carry out", carryOut, { primary: true });
  go.disabled = true;
  info(
    title,
    h("p", { class: "calm" }, "First make the plan, which moves nothing. Then carry it out. You may close this window meanwhile: the page Moves shows the operation."),
    h("form", { onsubmit: (event) => event.preventDefault() }, all.map((field, at) => h("label", {}, field.label, inputs[at]))),
    h("div", { class: "bar" }, button("Make the plan", plan), go),
    problem,
    place,
  );
}

function says(moves, elections, cordoned, total) {
  const parts = [`${plural(moves.length, "move")} with ${bytes(total)} to copy`];
  if (elections) parts.push(`${plural(elections, "partition")} to be led by the preferred replica`);
  if (cordoned.length) parts.push(`nodes ${cordoned.join(", ")} get no new replicas`);
  return moves.length || elections || cordoned.length ? `${parts.join("; ")}.` : "There is nothing to move.";
}

export function planTable(moves) {
  const table = new Table(
    [
      { title: "topic", cell: (row) => row.topic },
      { title: "partition", cell: (row) => row.partition },
      { title: "from", cell: (row) => [row.from].flat().join(", ") },
      { title: "to", cell: (row) => [row.to].flat().join(", ") },
      { title: "bytes", number: true, cell: (row) => bytes(row.bytes) },
    ],
    { key: (row) => `${row.topic}-${row.partition}-${row.node}` },
  );
  table.update(moves.slice(0, 200));
  return table.element;
}
