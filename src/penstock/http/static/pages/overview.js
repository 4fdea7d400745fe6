// The first page: health with its causes, totals, rates, nodes and the newest events.

import { get, path, query } from "../api.js";
import { Chart } from "../chart.js";
import { cards, fill, h, pill, section } from "../dom.js";
import { byteRate, bytes, number, rate, time } from "../format.js";
import { Table } from "../table.js";
import { nodeColumns } from "./nodes.js";

const MOODS = { offline: "bad", "under min ISR": "bad", "under-replicated": "warn" };

export async function show(view) {
  const totals = h("div", {});
  const causes = h("ul", { class: "causes", hidden: true });
  const records = new Chart("records in per second", [{ label: "records/s" }], { value: (each) => number(Math.round(each)), legend: false });
  const traffic = new Chart("bytes in per second", [{ label: "bytes/s" }], { value: (each) => bytes(Math.round(each)), legend: false });
  view.onLeave(() => [records, traffic].forEach((each) => each.close()));
  const wrong = new Table(
    [
      { title: "topic", cell: (row) => row.topic },
      { title: "problem", cell: (row) => pill(row.problem, MOODS[row.problem]) },
      { title: "partitions", number: true, cell: (row) => `${number(row.partitions)} of ${number(row.of)}` },
      { title: "not in sync on nodes", cell: (row) => row.out_of_sync.join(", ") },
      { title: "lag", number: true, cell: (row) => (row.lag === null ? "unknown" : number(row.lag)) },
    ],
    { key: (row) => `${row.topic} ${row.problem}`, open: (row) => (location.hash = `#/topics/${encodeURIComponent(row.topic)}`), empty: "No problems found." },
  );
  const nodes = new Table(nodeColumns(), { key: (row) => row.node, open: (row) => (location.hash = `#/nodes/${row.node}`) });
  const events = new Table(
    [
      { title: "time", cell: (row) => time(row.at_ms) },
      { title: "node", cell: (row) => row.node },
      { title: "kind", cell: (row) => row.kind },
      { title: "event", wide: true, cell: (row) => row.text },
    ],
    { key: (row) => `${row.at_ms} ${row.node} ${row.text}`, empty: "Nothing has happened yet." },
  );
  view.root.append(
    totals,
    h("div", { class: "plots" }, records.element, traffic.element),
    section("Needs attention", causes, wrong.element),
    section("Nodes", nodes.element),
    section("Newest events", events.element),
  );
  const draw = (seen) => {
    const up = seen.nodes - seen.fenced;
    fill(
      totals,
      cards([
        ["nodes", `${up} of ${seen.nodes} up`],
        ["controller", seen.controller >= 0 ? `node ${seen.controller}` : "none"],
        ["topics", number(seen.topics)],
        ["partitions", number(seen.partitions)],
        ["records in", rate(seen.records_per_second)],
        ["bytes in", byteRate(seen.bytes_per_second)],
        ["on disk", bytes(seen.bytes)],
        ["partitions moving", number(seen.moving)],
      ]),
    );
    fill(causes, seen.causes.map((each) => h("li", {}, each)));
    causes.hidden = seen.causes.length === 0;
    const times = seen.history.map((each) => each.at_ms / 1000);
    records.update([times, seen.history.map((each) => each.records_per_second)]);
    traffic.update([times, seen.history.map((each) => each.bytes_per_second)]);
    wrong.update(seen.topics_that_need_attention);
    nodes.update(seen.brokers);
  };
  const seen = (event) => draw(event.detail);
  addEventListener("overview", seen);
  view.onLeave(() => removeEventListener("overview", seen));
  draw(await get(path("cluster", "overview")));
  await view.every(5000, async () => events.update((await get(path("events") + query({ limit: 12 }))).events));
}
