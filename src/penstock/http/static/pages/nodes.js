// All nodes, and plans that move replicas between them.

import { get, path, query } from "../api.js";
import { change } from "../dialog.js";
import { button, h, pill } from "../dom.js";
import { bytes, number } from "../format.js";
import { Table } from "../table.js";
import { planDialog } from "./plans.js";

const MOODS = { up: "good", cordoned: "warn", silent: "warn", fenced: "bad", quarantined: "bad" };

export function nodeColumns() {
  return [
    { title: "node", cell: (row) => row.node },
    { title: "state", cell: (row) => pill(row.state, MOODS[row.state]) },
    { title: "controller", cell: (row) => row.controller || "" },
    { title: "address", cell: (row) => row.address },
    { title: "rack", cell: (row) => row.rack || "" },
    { title: "leads", number: true, cell: (row) => number(row.leaders) },
    { title: "replicas", number: true, cell: (row) => number(row.replicas) },
    { title: "out of sync", number: true, cell: (row) => number(row.out_of_sync) },
    { title: "lag", number: true, cell: (row) => number(row.lag) },
    { title: "metadata lag", number: true, cell: (row) => number(row.metadata_lag) },
    { title: "on disk", number: true, cell: (row) => bytes(row.bytes) },
  ];
}

export async function show(view) {
  const table = new Table(nodeColumns(), { key: (row) => row.node, open: (row) => (location.hash = `#/nodes/${row.node}`) });
  view.root.append(
    h("h1", {}, "Nodes and disks"),
    h(
      "div",
      { class: "bar" },
      button("Rebalance…", () => planDialog("Rebalance the cluster", path("cluster", "rebalance"), {})),
      button("Drain nodes…", drain),
      button("Elect preferred leaders…", elect),
    ),
    table.element,
    h("p", { class: "calm" }, "Open a node for its log directories, moves and configs."),
  );
  await view.every(3000, async () => table.update((await get(path("cluster", "nodes"))).nodes));
}

async function drain() {
  const nodes = (await get(path("cluster", "nodes"))).nodes.map((each) => each.node);
  await planDialog("Drain nodes", path("cluster", "drain"), {}, [
    { name: "nodes", label: `Nodes to empty, of ${nodes.join(", ")}`, required: true, hint: "such as 3, or 2,3" },
  ]);
}

async function elect() {
  const found = await get(path("cluster", "replication-status") + query({ limit: 1000, not_preferred: true }));
  const wrong = found.partitions;
  await change({
    title: "Elect preferred leaders",
    says: wrong.length
      ? `The first replica of ${wrong.length} of ${found.total} such partitions becomes their leader. Clients reconnect to it.`
      : "Every partition is led by its preferred replica already.",
    request: () => ({
      method: "POST",
      where: path("cluster", "force-election"),
      body: { partitions: wrong.map((each) => ({ topic: each.topic, partition: each.partition })) },
    }),
    action: "Elect",
  });
}
