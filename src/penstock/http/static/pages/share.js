// All share groups, paged and searched by the server.

import { get, path, query } from "../api.js";
import { h, pill } from "../dom.js";
import { PagedTable } from "../table.js";
import { MOODS } from "./groups.js";

export async function show(view) {
  const table = new PagedTable(
    [
      { title: "share group", wide: true, cell: (row) => row.group },
      { title: "state", cell: (row) => pill(row.state, MOODS[row.state] ?? "") },
      { title: "coordinator", number: true, cell: (row) => row.coordinator },
    ],
    async (page) => {
      const found = await get(path("share-groups") + query(page));
      return { total: found.total, rows: found.groups };
    },
    { key: (row) => row.group, open: (row) => (location.hash = `#/share/${encodeURIComponent(row.group)}`), hint: "search share groups", empty: "There are no share groups." },
  );
  view.root.append(h("h1", {}, "Share groups"), table.element);
  await view.every(3000, () => table.refresh());
}
