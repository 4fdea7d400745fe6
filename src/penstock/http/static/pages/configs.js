// The configs of a topic, a broker or a group: shown with a filter, set, and returned to their defaults.

import { get, path } from "../api.js";
import { change } from "../dialog.js";
import { button, h, pill, section } from "../dom.js";
import { Table } from "../table.js";

// Kafka's numbers of the sources of a config: those that somebody has set for this resource come first.
const SOURCES = { 1: "set here", 2: "set on this broker", 3: "cluster default", 4: "properties file", 5: "default", 6: "logger", 8: "set here" };
const CHOSEN = new Set([1, 2, 8]);

export async function configSection(resource, name) {
  const search = h("input", { type: "search", class: "search", placeholder: "search configs", "aria-label": "search configs" });
  const own = h("input", { type: "checkbox", checked: resource === "brokers" });
  const table = new Table(
    [
      { title: "config", wide: true, cell: (row) => h("span", { title: row.documentation || "", class: "mono" }, row.name) },
      { title: "value", cell: (row) => (row.sensitive ? "hidden" : row.value ?? "–") },
      { title: "source", cell: (row) => (CHOSEN.has(row.source) ? pill(SOURCES[row.source], "good") : SOURCES[row.source] || "") },
      { title: "", cell: (row) => (row.read_only ? "read only" : button("change…", () => edit(row))) },
    ],
    { key: (row) => row.name, empty: "No config matches." },
  );
  let configs = [];
  const draw = () => {
    const text = search.value.toLowerCase();
    const rows = configs.filter((row) => row.name.includes(text) && (text || !own.checked || CHOSEN.has(row.source)));
    table.update(rows.slice(0, 300));
  };
  const load = async () => {
    configs = (await get(path("configs", resource, name))).configs;
    configs.sort((one, other) => CHOSEN.has(other.source) - CHOSEN.has(one.source) || one.name.localeCompare(other.name));
    draw();
  };
  const edit = async (row) => {
    const done = await change({
      title: `Change ${row.name}`,
      says: row.documentation || "The new value applies at once.",
      fields: [
        { name: "value", label: `Value (now ${row.sensitive ? "hidden" : row.value})`, value: row.sensitive ? "" : row.value ?? "" },
        { name: "unset", label: "Return to the default", kind: "checkbox" },
      ],
      request: ({ value = "", unset }) => ({
        method: "PATCH",
        where: path("configs", resource, name),
        body: unset ? { unset: [row.name] } : { set: { [row.name]: value } },
        says: unset ? `${row.name} of ${name} gets its default again.` : `${row.name} of ${name} becomes "${value}" at once.`,
      }),
      action: "Change",
    });
    if (done) await load();
  };
  search.addEventListener("input", draw);
  own.addEventListener("change", draw);
  await load();
  const bar = h("div", { class: "bar" }, search, h("label", { class: "check" }, own, " only what was set"));
  return section("Configs", bar, table.element);
}
