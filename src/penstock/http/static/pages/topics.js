// All topics, paged, searched and sorted by the server, and a dialog that creates one.

import { get, path, query } from "../api.js";
import { change } from "../dialog.js";
import { button, h, pill } from "../dom.js";
import { byteRate, bytes, number, rate } from "../format.js";
import { PagedTable } from "../table.js";

const SORTS = ["topic", "records_per_second", "bytes", "partitions", "problems", "end_offset"];

export async function show(view) {
  const sort = h("select", { "aria-label": "order" }, SORTS.map((each) => h("option", { value: each }, each.replaceAll("_", " "))));
  const internal = h("input", { type: "checkbox" });
  const table = new PagedTable(
    [
      { title: "topic", wide: true, cell: (row) => row.topic },
      { title: "partitions", number: true, cell: (row) => number(row.partitions) },
      { title: "replicas", number: true, cell: (row) => number(row.replicas) },
      { title: "end offsets", number: true, cell: (row) => number(row.end_offset) },
      { title: "records in", number: true, cell: (row) => rate(row.records_per_second) },
      { title: "bytes in", number: true, cell: (row) => byteRate(row.bytes_per_second) },
      { title: "size", number: true, cell: (row) => bytes(row.bytes) },
      { title: "problems", cell: (row) => (row.problems ? pill(number(row.problems), "warn") : "") },
    ],
    async (page) => {
      const found = await get(path("topics") + query({ ...page, sort: sort.value, internal: internal.checked }));
      return { total: found.total, rows: found.topics };
    },
    { key: (row) => row.topic, open: (row) => (location.hash = `#/topics/${encodeURIComponent(row.topic)}`), hint: "search topics", empty: "No topic matches." },
  );
  sort.addEventListener("change", () => table.go(0));
  internal.addEventListener("change", () => table.go(0));
  table.tools.append(sort, h("label", { class: "check" }, internal, " internal"), button("Create topic…", create, { primary: true }));
  view.root.append(h("h1", {}, "Topics"), table.element);
  await view.every(3000, () => table.refresh());

  async function create() {
    const made = await change({
      title: "Create a topic",
      says: "The topic is created on all its replicas.",
      fields: [
        { name: "name", label: "Name", required: true },
        { name: "partitions", label: "Partitions", kind: "number", hint: "num.partitions" },
        { name: "replication_factor", label: "Replicas", kind: "number", hint: "default.replication.factor" },
        { name: "configs", label: "Configs, one name=value per line", kind: "textarea", rows: 3 },
      ],
      request: ({ configs = "", ...body }) => ({
        method: "POST",
        where: path("topics"),
        body: { ...body, ...(configs.trim() ? { configs: pairs(configs) } : {}) },
        says: `Topic "${body.name || "…"}" is created with ${body.partitions || "the default number of"} partitions.`,
      }),
      action: "Create",
      done: (result) => `Topic ${result.topic} is created`,
    });
    if (made) location.hash = `#/topics/${encodeURIComponent(made.topic)}`;
  }
}

function pairs(text) {
  const found = {};
  for (const line of text.split("\n").filter((each) => each.trim())) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`"${line}" is not name=value.`);
    found[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return found;
}
