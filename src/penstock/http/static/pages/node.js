// One node: its log directories, the moves between them, and its configs.

import { get, path } from "../api.js";
import { change } from "../dialog.js";
import { button, h, pill, section } from "../dom.js";
import { bytes, number } from "../format.js";
import { Table } from "../table.js";
import { configSection } from "./configs.js";
import { planDialog } from "./plans.js";

export async function show(view) {
  const node = view.rest[0];
  const directories = new Table(
    [
      { title: "directory", wide: true, cell: (row) => row.path },
      { title: "state", cell: (row) => (row.error ? pill(row.error, "bad") : row.cordoned ? pill("cordoned", "warn") : pill("online", "good")) },
      { title: "replicas", number: true, cell: (row) => number(row.replicas) },
      { title: "free", number: true, cell: (row) => bytes(row.usable_bytes) },
      { title: "total", number: true, cell: (row) => bytes(row.total_bytes) },
      { title: "used", cell: (row) => used(row) },
      { title: "", cell: (row) => button("evacuate…", () => evacuate(node, row.path)) },
    ],
    { key: (row) => row.path },
  );
  const moves = new Table(
    [
      { title: "replica", cell: (row) => `${row.topic}-${row.partition}` },
      { title: "to", cell: (row) => row.directory },
      { title: "copied", number: true, cell: (row) => bytes(row.size) },
      { title: "records left", number: true, cell: (row) => number(row.lag) },
    ],
    { key: (row) => `${row.topic}-${row.partition}`, empty: "No replica is being moved." },
  );
  view.root.append(
    h("h1", {}, `Node ${node}`),
    h(
      "div",
      { class: "bar" },
      button("Balance directories…", () => planDialog(`Balance the directories of node ${node}`, path("nodes", node, "balance"), {})),
      button("Metadata snapshot…", snapshot),
      button("Release from quarantine…", () => release(node)),
    ),
    section("Log directories", directories.element),
    section("Moves between directories", moves.element),
    await configSection("brokers", node),
  );
  await view.every(3000, async () => {
    const found = await get(path("nodes", node, "directories"));
    directories.update(found.directories);
    moves.update(found.moves);
  });
}

function used(row) {
  if (!(row.total_bytes > 0)) return "";
  const share = 1 - row.usable_bytes / row.total_bytes;
  return h("span", { class: "meter", title: `${Math.round(share * 100)} %` }, h("progress", { max: 1, value: share }));
}

function evacuate(node, directory) {
  return planDialog(`Evacuate ${directory} of node ${node}`, path("nodes", node, "evacuate"), { directory });
}

function release(node) {
  return change({
    title: `Release node ${node} from quarantine`,
    says: `Node ${node} serves clients and joins in-sync sets again. Replicas that were found damaged are not repaired by this.`,
    request: () => ({ method: "POST", where: path("nodes", node, "release"), body: {} }),
    action: "Release",
    danger: true,
    done: (result) => (result.released ? `Node ${node} is released` : `Node ${node} is not in quarantine`),
  });
}

function snapshot() {
  return change({
    title: "Metadata snapshot",
    says: "The node that serves this console writes a snapshot of the metadata log now.",
    request: () => ({ method: "POST", where: path("cluster", "compact-log"), body: {} }),
    action: "Write",
    done: (result) => `Snapshot ${result.snapshot}`,
  });
}
