// The quorum, and a time line of elections, fenced brokers and changes of in-sync sets.

import { get, path, query } from "../api.js";
import { Chart } from "../chart.js";
import { change } from "../dialog.js";
import { button, cards, fill, h, section } from "../dom.js";
import { list, number, time } from "../format.js";
import { Table } from "../table.js";

const KINDS = [
  ["quorum", "quorum"],
  ["broker", "brokers"],
  ["partition.leader", "leaders"],
  ["partition.isr", "in-sync sets"],
];

export async function show(view) {
  const totals = h("div", {});
  const chart = new Chart("events by node, over time", KINDS.map(([, label]) => ({ label, points: true })), { value: (each) => `node ${each}`, height: 190, whole: true });
  view.onLeave(() => chart.close());
  const table = new Table(
    [
      { title: "time", cell: (row) => time(row.at_ms) },
      { title: "node", cell: (row) => row.node },
      { title: "kind", cell: (row) => row.kind },
      { title: "event", wide: true, cell: (row) => row.text },
    ],
    { key: (row) => `${row.at_ms} ${row.node} ${row.text}`, empty: "Nothing has happened yet." },
  );
  const lags = new Table(
    [
      { title: "node", cell: (row) => row.node },
      { title: "role", cell: (row) => row.controller || "observer" },
      { title: "metadata lag", number: true, cell: (row) => number(row.metadata_lag) },
    ],
    { key: (row) => row.node },
  );
  view.root.append(
    h("h1", {}, "Quorum and ISR"),
    h("div", { class: "bar" }, button("Make the leader resign…", resign)),
    totals,
    lags.element,
    section("Time line", chart.element),
    section("Events", table.element),
  );
  await view.every(3000, async () => {
    const [quorum, nodes, found] = await Promise.all([get(path("cluster", "quorum")), get(path("cluster", "nodes")), get(path("events") + query({ limit: 500 }))]);
    fill(totals, cards([["leader", `node ${quorum.leader}`], ["epoch", number(quorum.epoch)], ["high watermark", number(quorum.high_watermark)], ["voters", list(quorum.voters)]]));
    lags.update(nodes.nodes);
    const rows = found.events.filter((row) => KINDS.some(([kind]) => row.kind.startsWith(kind)));
    table.update(rows.slice(0, 200));
    const ordered = [...rows].reverse();
    chart.update([ordered.map((row) => row.at_ms / 1000), ...KINDS.map(([kind]) => ordered.map((row) => (row.kind.startsWith(kind) ? row.node : null)))]);
  });
}

function resign() {
  return change({
    title: "Make the quorum's leader resign",
    says: "The leader of the quorum steps down, and the voters elect another one. Changes of metadata wait for the election. Only the leader's own console can do this.",
    request: () => ({ method: "POST", where: path("cluster", "force-election"), body: {} }),
    action: "Resign",
    danger: true,
    done: (result) => `Node ${result.resigned} resigned`,
  });
}
