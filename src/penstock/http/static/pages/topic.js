// One topic: messages, partitions and configs, and the changes of the whole topic.

import { get, path, query } from "../api.js";
import { Chart } from "../chart.js";
import { change } from "../dialog.js";
import { button, fill, h, pill } from "../dom.js";
import { bytes, number } from "../format.js";
import { PagedTable } from "../table.js";
import { configSection } from "./configs.js";
import { messagesTab } from "./messages.js";

export async function show(view) {
  const [topic, chosen = "messages"] = view.rest;
  const here = `#/topics/${encodeURIComponent(topic)}`;
  const described = await get(path("topics", topic) + query({ limit: 1 }));
  const counts = h("span", { class: "calm" }, `${number(described.partitions)} partitions`);
  const tabs = ["messages", "partitions", "configs"].map((name) =>
    h("button", { type: "button", role: "tab", "aria-selected": String(name === chosen), onclick: () => (location.hash = `${here}/${name}`) }, name),
  );
  const place = h("div", {});
  view.root.append(
    h("h1", {}, topic, counts),
    h(
      "div",
      { class: "bar" },
      button("Add partitions…", () => grow(topic, described.partitions)),
      button("Trim…", () => trim(topic, described.partitions)),
      button("Compact now…", () => compact(topic)),
      button("Delete…", () => remove(topic), { danger: true }),
    ),
    h("div", { class: "tabs", role: "tablist" }, tabs),
    place,
  );
  if (chosen === "messages") await messagesTab(view, place, topic, described.partitions);
  else if (chosen === "configs") fill(place, await configSection("topics", topic));
  else await partitionsTab(view, place, topic);
}

async function partitionsTab(view, place, topic) {
  const records = new Chart("records in per second", [{ label: "records/s" }], { value: (each) => number(Math.round(each)), legend: false });
  const traffic = new Chart("bytes in per second", [{ label: "bytes/s" }], { value: (each) => bytes(Math.round(each)), legend: false });
  view.onLeave(() => [records, traffic].forEach((each) => each.close()));
  const table = new PagedTable(
    [
      { title: "partition", cell: (row) => row.partition },
      { title: "leader", number: true, cell: (row) => (row.leader === null ? pill("none", "bad") : row.leader) },
      { title: "epoch", number: true, cell: (row) => row.leader_epoch },
      { title: "replicas", cell: (row) => row.replicas.join(", ") },
      { title: "in sync", cell: (row) => row.isr.join(", ") },
      { title: "end offset", number: true, cell: (row) => number(row.end_offset) },
      { title: "lag", number: true, cell: (row) => number(row.lag) },
      { title: "size", number: true, cell: (row) => bytes(row.bytes) },
      { title: "problem", cell: (row) => (row.problem ? pill(row.problem, "warn") : row.preferred ? "" : "not led by the preferred replica") },
    ],
    async ({ start, limit }) => {
      const found = await get(path("topics", topic) + query({ start, limit }));
      const times = found.rate_history.map((each) => each.at_ms / 1000);
      records.update([times, found.rate_history.map((each) => each.records_per_second)]);
      traffic.update([times, found.rate_history.map((each) => each.bytes_per_second)]);
      return { total: found.partitions, rows: found.partition_states };
    },
    { key: (row) => row.partition, search: false },
  );
  fill(place, h("div", { class: "plots" }, records.element, traffic.element), table.element);
  await view.every(3000, () => table.refresh());
}

function grow(topic, now) {
  return change({
    title: `Add partitions to ${topic}`,
    says: "Records with the same key may go to another partition afterwards.",
    fields: [{ name: "total", label: `Partitions afterwards (now ${now})`, kind: "number", value: now + 1, required: true }],
    request: ({ total }) => ({
      method: "POST",
      where: path("topics", topic, "partitions"),
      body: { total },
      says: `${topic} gets ${total - now} more partitions. They can't be taken away again, and records with the same key may go to another partition.`,
    }),
    action: "Add",
  });
}

function trim(topic, count) {
  return change({
    title: `Trim ${topic}`,
    says: "Records are deleted for good.",
    fields: [
      { name: "partition", label: "Partition", kind: "number", value: 0, required: true },
      { name: "before", label: "Delete all records before this offset (-1: all records)", kind: "number", value: -1, required: true },
    ],
    request: ({ partition, before }) => {
      if (!(partition >= 0 && partition < count)) throw new Error(`Partitions are 0 to ${count - 1}.`);
      return {
        method: "POST",
        where: path("topics", topic, "trim"),
        body: { partitions: [{ partition, before }] },
        says: `All records of ${topic}-${partition} ${before < 0 ? "" : `before offset ${before} `}are deleted for good, on every replica.`,
      };
    },
    action: "Delete records",
    danger: true,
    done: (result) => `${topic} now starts at offset ${result.starts[0].start_offset}`,
  });
}

function compact(topic) {
  return change({
    title: `Compact ${topic} now`,
    says: `The replicas of ${topic} on the node that serves this console are compacted at once: of each key the last record stays. The topic has to have cleanup.policy=compact.`,
    request: () => ({ method: "POST", where: path("cluster", "compact-log"), body: { topics: [topic] } }),
    action: "Compact",
  });
}

async function remove(topic) {
  const gone = await change({
    title: `Delete ${topic}`,
    says: `Topic ${topic} and all its records are deleted for good.`,
    fields: [{ name: "typed", label: `Type ${topic} to confirm`, required: true }],
    request: ({ typed }) => {
      if (typed !== topic) throw new Error(`Type the name ${topic}.`);
      return { method: "DELETE", where: path("topics", topic), body: {} };
    },
    action: "Delete the topic",
    danger: true,
    done: `Topic ${topic} is deleted`,
  });
  if (gone) location.hash = "#/topics";
}
