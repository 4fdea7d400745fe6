// One consumer group: lag with its history, members, and a reset of its offsets with a dry run.

import { get, path, query, send } from "../api.js";
import { Chart } from "../chart.js";
import { change, info, note } from "../dialog.js";
import { button, cards, fill, h, pill, section } from "../dom.js";
import { number, plural } from "../format.js";
import { PagedTable, Table } from "../table.js";
import { MOODS } from "./groups.js";

export async function show(view) {
  const group = view.rest[0];
  const totals = h("div", {});
  const chart = new Chart("lag in records", [{ label: "lag" }], { legend: false });
  view.onLeave(() => chart.close());
  const partitions = new PagedTable(
    [
      { title: "topic", cell: (row) => row.topic },
      { title: "partition", cell: (row) => row.partition },
      { title: "committed", number: true, cell: (row) => number(row.committed) },
      { title: "end", number: true, cell: (row) => number(row.end) },
      { title: "lag", number: true, cell: (row) => number(row.lag) },
      { title: "member", cell: (row) => row.member || "" },
      { title: "host", cell: (row) => row.host || "" },
    ],
    async (page) => {
      const seen = await get(path("groups", group) + query(page));
      fill(totals, cards([["state", pill(seen.state, MOODS[seen.state] ?? "")], ["lag", number(seen.lag)], ["members", number(seen.member_count)], ["partitions", number(seen.total)]]), seen.truncated && h("p", { class: "calm" }, "The assignments of this group are too long: the last partitions in them were not read."));
      chart.update([seen.lag_history.map(([ms]) => ms / 1000), seen.lag_history.map(([, lag]) => lag)]);
      members.update(seen.members.slice(0, 500));
      return { total: seen.total, rows: seen.partitions };
    },
    { key: (row) => `${row.topic}-${row.partition}`, limit: 100, hint: "search topics of this group", empty: "No committed offset matches." },
  );
  const members = new Table(
    [
      { title: "member", wide: true, cell: (row) => row.member },
      { title: "client", cell: (row) => row.client },
      { title: "host", cell: (row) => row.host },
      { title: "instance", cell: (row) => row.instance || "" },
      { title: "partitions", wide: true, cell: (row) => row.partitions.slice(0, 50).join(", ") + (row.partition_count > Math.min(row.partitions.length, 50) ? " …" : "") },
    ],
    { key: (row) => row.member, empty: "The group has no members." },
  );
  view.root.append(
    h("h1", {}, group),
    h("div", { class: "bar" }, button("Reset offsets…", () => resetDialog(path("groups", group), group, true)), button("Delete…", () => remove(group), { danger: true })),
    totals,
    chart.element,
    section("Partitions", partitions.element),
    section("Members", members.element),
  );
  await view.every(2000, () => partitions.refresh());
}

// Shared with share groups, whose offsets can't be moved by time or by a number of records.
export function resetDialog(where, group, byTime) {
  const targets = byTime ? ["earliest", "latest", "offset", "shift", "timestamp_ms"] : ["earliest", "latest", "offset"];
  const target = h("select", { "aria-label": "target" }, targets.map((each) => h("option", { value: each }, each === "timestamp_ms" ? "time" : each)));
  const value = h("input", { "aria-label": "value", hidden: true });
  const topics = h("input", { placeholder: "all topics with offsets, or names separated by commas", "aria-label": "topics" });
  const place = h("div", {});
  const problem = h("p", { class: "problem", role: "alert" });
  target.addEventListener("change", () => {
    value.hidden = ["earliest", "latest"].includes(target.value);
    value.type = target.value === "timestamp_ms" ? "datetime-local" : "number";
    go.disabled = true;
  });
  const body = () => {
    const named = topics.value.split(",").map((each) => each.trim()).filter(Boolean);
    const given = ["earliest", "latest"].includes(target.value) ? true : target.value === "timestamp_ms" ? new Date(value.value).getTime() : Number(value.value);
    if (Number.isNaN(given)) throw new Error("Give a value.");
    return { [target.value]: given, ...(named.length ? { topics: named } : {}) };
  };
  const table = new Table(
    [
      { title: "topic", cell: (row) => row.topic },
      { title: "partition", cell: (row) => row.partition },
      { title: "before", number: true, cell: (row) => number(row.before) },
      { title: "after", number: true, cell: (row) => number(row.after) },
      { title: "result", cell: (row) => (row.kafka_error ? pill(row.kafka_error, "bad") : "") },
    ],
    { key: (row) => `${row.topic}-${row.partition}` },
  );
  const run = async (dry) => {
    problem.textContent = "";
    try {
      const result = await send("POST", `${where}/reset-offsets`, { ...body(), dry_run: dry });
      table.update(result.partitions.slice(0, 500));
      const refused = result.partitions.filter((each) => each.kafka_error).length;
      const what = plural(result.partitions.length, "partition");
      fill(place, h("p", {}, dry ? `${what} would be moved. Nothing has changed yet.` : `${what} moved, ${refused} refused.`), table.element);
      go.disabled = !dry;
      if (!dry) note(`Offsets of ${group} were reset`);
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  const go = button("Reset", () => run(false), { danger: true });
  go.disabled = true;
  info(
    `Reset offsets of ${group}`,
    h("p", { class: "calm" }, "The group must have no members. Its members read from the new offsets when they start: records are skipped or read again. Try it first: the dry run changes nothing."),
    h("div", { class: "bar" }, target, value),
    h("div", { class: "bar" }, topics),
    h("div", { class: "bar" }, button("Dry run", () => run(true), { primary: true }), go),
    problem,
    place,
  );
}

async function remove(group) {
  const gone = await change({
    title: `Delete group ${group}`,
    says: `Group ${group} and its committed offsets are deleted. It must have no members.`,
    request: () => ({ method: "DELETE", where: path("groups", group), body: {} }),
    action: "Delete the group",
    danger: true,
  });
  if (gone) location.hash = "#/groups";
}
