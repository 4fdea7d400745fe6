// Transactional ids, and transactions that hang because no coordinator will end them.

import { get, path, query } from "../api.js";
import { change, info, note } from "../dialog.js";
import { button, h, pill, section } from "../dom.js";
import { duration, list, number, time } from "../format.js";
import { PagedTable, Table } from "../table.js";

const MOODS = { Ongoing: "warn", PrepareAbort: "warn", PrepareCommit: "warn", CompleteCommit: "good", CompleteAbort: "" };

export async function show(view) {
  const table = new PagedTable(
    [
      { title: "transactional id", wide: true, cell: (row) => row.transactional_id },
      { title: "state", cell: (row) => pill(row.state, MOODS[row.state] ?? "") },
      { title: "producer id", number: true, cell: (row) => row.producer_id },
      { title: "coordinator", number: true, cell: (row) => row.coordinator },
    ],
    async (page) => {
      const found = await get(path("transactions") + query(page));
      return { total: found.total, rows: found.transactions };
    },
    { key: (row) => row.transactional_id, open: detail, hint: "search transactional ids", empty: "There are no transactions." },
  );
  const hanging = new Table(
    [
      { title: "partition", cell: (row) => `${row.topic}-${row.partition}` },
      { title: "start offset", number: true, cell: (row) => number(row.start_offset) },
      { title: "producer id", number: true, cell: (row) => row.producer_id },
      { title: "last record", cell: (row) => time(row.last_timestamp) },
      { title: "age", number: true, cell: (row) => duration(row.age_ms) },
      { title: "", cell: (row) => button("abort…", () => abort(row), { danger: true }) },
    ],
    { key: (row) => `${row.topic}-${row.partition}-${row.start_offset}`, empty: "No transaction hangs." },
  );
  const minutes = h("input", { type: "number", value: 15, min: 0, "aria-label": "minutes" });
  const look = async () => {
    const found = await get(path("hanging-transactions") + query({ max_age_ms: Math.round(Number(minutes.value) * 60000), limit: 500 }));
    hanging.update(found.transactions);
  };
  const safely = async () => {
    try {
      await look();
    } catch (error) {
      note(error.message, "bad");
    }
  };
  view.root.append(
    h("h1", {}, "Transactions"),
    table.element,
    section(
      "Hanging transactions",
      h("p", { class: "calm" }, "A transaction hangs if it is open in a partition and no coordinator will end it: consumers with read_committed wait behind it."),
      h("div", { class: "bar" }, "older than", minutes, "minutes", button("Look", safely)),
      hanging.element,
    ),
  );
  await view.every(3000, () => table.refresh());
  await safely();
}

async function detail(row) {
  const seen = await get(path("transactions", row.transactional_id));
  const rows = [
    ["state", seen.state],
    ["producer", `${seen.producer_id}, epoch ${seen.producer_epoch}`],
    ["timeout", seen.two_phase ? "none (two-phase commit)" : duration(seen.timeout_ms)],
    ["open for", duration(seen.age_ms)],
    ["coordinator", `node ${seen.coordinator}`],
    ["partitions", list(seen.partitions)],
  ];
  const element = info(
    `Transaction ${row.transactional_id}`,
    h("dl", { class: "keys" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("div", { class: "bar" }, button("Terminate…", () => {
      element.close();
      return terminate(row.transactional_id);
    }, { danger: true })),
  );
}

function terminate(id) {
  return change({
    title: `Terminate the transaction of ${id}`,
    says: `The open transaction of ${id} is aborted, prepared or not, and its producer is fenced: it has to start again.`,
    request: () => ({ method: "POST", where: path("transactions", id, "terminate"), body: {} }),
    action: "Abort and fence",
    danger: true,
    done: (result) => (result.aborted ? "The transaction was aborted" : "Nothing was open; the producer is fenced"),
  });
}

function abort(row) {
  return change({
    title: `Abort the hanging transaction of ${row.topic}-${row.partition}`,
    says: `An abort marker is written to ${row.topic}-${row.partition}. The records from offset ${row.start_offset} on are never committed.`,
    request: () => ({ method: "POST", where: path("hanging-transactions", "abort"), body: { topic: row.topic, partition: row.partition, start_offset: row.start_offset } }),
    action: "Write the marker",
    danger: true,
  });
}
