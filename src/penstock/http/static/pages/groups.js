// All groups of every type, paged and searched by the server.

import { get, path, query } from "../api.js";
import { h, pill } from "../dom.js";
import { PagedTable } from "../table.js";

export const MOODS = { Stable: "good", Empty: "", Dead: "bad", PreparingRebalance: "warn", CompletingRebalance: "warn", Assigning: "warn", Reconciling: "warn" };

export async function show(view) {
  const table = new PagedTable(
    [
      { title: "group", wide: true, cell: (row) => row.group },
      { title: "type", cell: (row) => row.type },
      { title: "protocol", cell: (row) => row.protocol },
      { title: "state", cell: (row) => pill(row.state, MOODS[row.state] ?? "") },
      { title: "coordinator", number: true, cell: (row) => row.coordinator },
    ],
    async (page) => {
      const found = await get(path("groups") + query(page));
      return { total: found.total, rows: found.groups };
    },
    {
      key: (row) => row.group,
      open: (row) => (location.hash = `#/${row.type === "share" ? "share" : "groups"}/${encodeURIComponent(row.group)}`),
      hint: "search groups",
      empty: "No group matches.",
    },
  );
  view.root.append(h("h1", {}, "Groups"), table.element);
  await view.every(3000, () => table.refresh());
}
