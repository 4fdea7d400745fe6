// What happened in the cluster, live, with a filter.

import { follow, path, query } from "../api.js";
import { info } from "../dialog.js";
import { fill, h, soon } from "../dom.js";
import { number, time } from "../format.js";
import { Table } from "../table.js";

const SHOWN = 500;

export async function show(view) {
  const search = h("input", { type: "search", class: "search", placeholder: "search in text and kind", "aria-label": "search events" });
  const state = h("span", { class: "calm" }, "connecting…");
  const left = h("span", { class: "calm" });
  let rows = [];
  const table = new Table(
    [
      { title: "time", cell: (row) => time(row.at_ms) },
      { title: "node", cell: (row) => row.node },
      { title: "kind", cell: (row) => row.kind },
      { title: "event", wide: true, cell: (row) => row.text },
    ],
    { key: (row) => `${row.at_ms} ${row.node} ${row.kind} ${row.text}`, open: detail, empty: "No event matches." },
  );
  const draw = () => {
    const text = search.value.toLowerCase();
    table.update(rows.filter((row) => `${row.kind} ${row.text}`.toLowerCase().includes(text)).slice(0, SHOWN));
  };
  const later = soon(draw);
  search.addEventListener("input", draw);
  view.root.append(h("h1", {}, "Events"), h("div", { class: "bar" }, search, state, left), table.element);
  const stop = follow(
    path("events", "stream") + query({ last: SHOWN }),
    {
      event: (row) => {
        rows = [row, ...rows].slice(0, 2 * SHOWN);
        later();
      },
      left_out: ({ records }) => fill(left, `${number(records)} records of the topic of events are no events, and are left out`),
    },
    (open) => {
      if (open) rows = []; // a new stream sends the newest events again
      fill(state, h("span", { class: open ? "live" : "problem" }, open ? "● live" : "no answer: trying again"));
    },
  );
  view.onLeave(stop);
}

function detail(row) {
  info(row.kind, h("p", {}, row.text), h("pre", { class: "preview" }, JSON.stringify(row.fields, null, 2)));
}
