// The pipelines of this machine, one row for each query.

import { get, path } from "../api.js";
import { h, pill } from "../dom.js";
import { duration, number, rate } from "../format.js";
import { Table } from "../table.js";

const MOODS = { running: "good", failed: "bad", killed: "bad" };

export async function show(view) {
  const table = new Table(
    [
      { title: "pipeline", wide: true, cell: (row) => row.name },
      { title: "state", cell: (row) => pill(row.state, MOODS[row.state] ?? "") },
      { title: "query", cell: (row) => row.query?.name ?? "" },
      { title: "batch", number: true, cell: (row) => number(row.query?.batch) },
      { title: "rows", number: true, cell: (row) => number(row.query?.total_rows) },
      { title: "rate", number: true, cell: (row) => rate(row.query?.rows_per_second) },
      { title: "batch time", number: true, cell: (row) => duration(row.query?.batch_ms) },
      { title: "lag", number: true, cell: (row) => number(row.query?.lag) },
      { title: "last", cell: (row) => (row.state === "failed" || !row.query ? row.last : "") },
    ],
    { key: (row) => `${row.name} ${row.query?.name ?? ""}`, empty: "No pipeline has run on this machine." },
  );
  view.root.append(h("h1", {}, "Pipelines"), table.element);
  await view.every(2000, async () => {
    const { pipelines } = await get(path("pipelines"));
    table.update(pipelines.flatMap((each) => (each.queries.length ? each.queries.map((query) => ({ ...each, query })) : [{ ...each, query: null }])).slice(0, 500));
  });
}
