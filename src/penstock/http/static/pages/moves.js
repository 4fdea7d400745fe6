// Reassignments and moves between directories with their progress, and the long operations of this node.

import { get, path, query, send } from "../api.js";
import { change, info, note } from "../dialog.js";
import { button, h, pill, section } from "../dom.js";
import { bytes, byteRate, duration, list, number, time } from "../format.js";
import { Table } from "../table.js";

const MOODS = { running: "warn", done: "good", failed: "bad", cancelled: "" };

export async function show(view) {
  const operations = new Table(
    [
      { title: "operation", number: true, cell: (row) => row.operation },
      { title: "what", wide: true, cell: (row) => row.about },
      { title: "state", cell: (row) => pill(row.state, MOODS[row.state]) },
      { title: "progress", cell: progress },
      { title: "began", cell: (row) => time(row.started_ms) },
      { title: "took", number: true, cell: (row) => (row.ended_ms ? duration(row.ended_ms - row.started_ms) : "") },
      { title: "", cell: (row) => (row.state === "running" ? button("stop", () => stop(row), { changes: true }) : row.error || "") },
    ],
    { key: (row) => row.operation, open: detail, empty: "No operation has run on this node." },
  );
  const reassignments = new Table(
    [
      { title: "partition", cell: (row) => `${row.topic}-${row.partition}` },
      { title: "replicas", cell: (row) => list(row.replicas) },
      { title: "adding", cell: (row) => list(row.adding) },
      { title: "removing", cell: (row) => list(row.removing) },
      { title: "copied", number: true, cell: (row) => (row.copied_percent === null || row.copied_percent === undefined ? "–" : `${row.copied_percent} %`) },
      { title: "records left", number: true, cell: (row) => number(row.lag) },
      { title: "", cell: (row) => button("cancel…", () => cancel(row)) },
    ],
    { key: (row) => `${row.topic}-${row.partition}`, empty: "No partition is being reassigned." },
  );
  const directories = new Table(
    [
      { title: "replica", cell: (row) => `${row.topic}-${row.partition}` },
      { title: "state", cell: (row) => row.state },
      { title: "from", cell: (row) => row.from },
      { title: "to", cell: (row) => row.to },
      { title: "bytes left", number: true, cell: (row) => bytes(row.bytes_left) },
      { title: "rate", number: true, cell: (row) => byteRate(row.bytes_per_second) },
      { title: "time left", number: true, cell: (row) => (row.seconds_left === null ? "–" : duration(row.seconds_left * 1000)) },
    ],
    { key: (row) => `${row.topic}-${row.partition}`, empty: "No replica of this node is being moved between its directories." },
  );
  view.root.append(
    h("h1", {}, "Moves and operations"),
    section("Reassignments", reassignments.element),
    section("Moves between directories of this node", directories.element),
    section("Operations of this node", operations.element),
  );
  await view.every(1500, async () => {
    const [found, going, seen] = await Promise.all([get(path("operations")), get(path("reassignments") + query({ limit: 500 })), get(path("cluster", "overview"))]);
    operations.update(found.operations);
    reassignments.update(going.reassignments);
    directories.update(seen.directory_moves_of_this_node);
  });
}

function progress(row) {
  const { done, total, unit } = row.progress;
  const text = ` ${number(done)}${total === null ? "" : ` of ${number(total)}`} ${unit}`;
  return total ? [h("span", { class: "meter" }, h("progress", { max: 1, value: done / total })), text] : text;
}

async function stop(row) {
  await send("POST", path("operations", row.operation, "cancel"));
  note(`Operation ${row.operation} is cancelled; what it has begun in the cluster goes on`);
}

async function detail(row) {
  const seen = await get(path("operations", row.operation));
  info(`Operation ${row.operation}`, h("p", {}, seen.about), h("pre", { class: "preview" }, JSON.stringify(seen, null, 2).slice(0, 50000)));
}

function cancel(row) {
  return change({
    title: `Cancel the reassignment of ${row.topic}-${row.partition}`,
    says: `Nodes ${list(row.adding)} get no replica; the replicas are as before.`,
    request: () => ({ method: "POST", where: path("reassignments"), body: { partitions: [{ topic: row.topic, partition: row.partition }] } }),
    action: "Cancel the reassignment",
    danger: true,
  });
}
