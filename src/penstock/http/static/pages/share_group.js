// One share group: windows, records in flight, dead letters, members, and what an operator can do with them.

import { get, path, query } from "../api.js";
import { change } from "../dialog.js";
import { button, cards, fill, h, pill, section } from "../dom.js";
import { duration, number } from "../format.js";
import { Table } from "../table.js";
import { resetDialog } from "./group.js";
import { MOODS } from "./groups.js";

export async function show(view) {
  const group = view.rest[0];
  const where = path("share-groups", group);
  const totals = h("div", {});
  const windows = new Table(
    [
      { title: "partition", cell: (row) => `${row.topic}-${row.partition}` },
      { title: "state", cell: (row) => pill(row.state, row.state === "active" ? "good" : "") },
      { title: "window", cell: (row) => (row.start_offset === undefined ? "" : `${number(row.start_offset)} – ${number(row.end_offset)}`) },
      { title: "available", number: true, cell: (row) => number(row.available) },
      { title: "acquired", number: true, cell: (row) => number(row.acquired) },
      { title: "delayed", number: true, cell: (row) => number(row.delayed) },
      { title: "done", number: true, cell: (row) => number(row.complete) },
      { title: "waiting for dead letters", number: true, cell: (row) => number(row.waiting_for_dead_letters) },
      { title: "dead letters", cell: (row) => deadLetters(row) },
    ],
    { key: (row) => `${row.topic}-${row.partition}`, empty: "The group has no offsets." },
  );
  const flying = new Table(
    [
      { title: "partition", cell: (row) => `${row.topic}-${row.partition}` },
      { title: "offsets", cell: (row) => (row.first === row.last ? number(row.first) : `${number(row.first)} – ${number(row.last)}`) },
      { title: "state", cell: (row) => row.state },
      { title: "deliveries", number: true, cell: (row) => row.deliveries },
      { title: "member", cell: (row) => row.member || "" },
      { title: "held", number: true, cell: (row) => duration(row.held_ms) },
      { title: "lock ends in", number: true, cell: (row) => duration(row.lock_ms ?? row.delay_ms) },
      { title: "", cell: (row) => [button("release…", () => one(row, "release")), " ", button("archive…", () => one(row, "archive"))] },
    ],
    { key: (row) => `${row.topic}-${row.partition}-${row.first}`, empty: "No records are in flight." },
  );
  const members = new Table(
    [
      { title: "member", wide: true, cell: (row) => row.member },
      { title: "client", cell: (row) => row.client },
      { title: "host", cell: (row) => row.host },
      { title: "partitions", wide: true, cell: (row) => row.partitions.slice(0, 50).join(", ") + (row.partition_count > Math.min(row.partitions.length, 50) ? " …" : "") },
    ],
    { key: (row) => row.member, empty: "The group has no members." },
  );
  view.root.append(
    h("h1", {}, group),
    h(
      "div",
      { class: "bar" },
      button("Reset offsets…", () => resetDialog(where, group, false)),
      button("Drain…", drain, { danger: true }),
      button("Delete…", remove, { danger: true }),
    ),
    totals,
    section("Windows", windows.element),
    section("Records in flight", flying.element),
    section("Members", members.element),
  );
  await view.every(2000, async () => {
    const [seen, found] = await Promise.all([get(where + query({ limit: 1 })), get(`${where}/windows${query({ limit: 500 })}`)]);
    fill(totals, cards([["state", pill(seen.state, MOODS[seen.state] ?? "")], ["lag", number(seen.lag)], ["members", number(seen.member_count)], ["partitions", number(seen.total)]]));
    windows.update(found.windows);
    flying.update(found.windows.flatMap((each) => (each.records || []).map((run) => ({ topic: each.topic, partition: each.partition, ...run }))).slice(0, 500));
    members.update(seen.members);
  });

  function deadLetters(row) {
    if (row.dead_letter_error) return pill(row.dead_letter_error, "bad");
    return row.dead_letter_topic ? h("a", { href: `#/topics/${encodeURIComponent(row.dead_letter_topic)}` }, row.dead_letter_topic) : "";
  }

  function one(row, kind) {
    const what = row.first === row.last ? `The record at offset ${row.first}` : `The records from offset ${row.first} to ${row.last}`;
    const then = kind === "release" ? "can be delivered to another member at once" : "are given up: no member gets them again, and dead letters are written if the group has them";
    return change({
      title: `${kind === "release" ? "Release" : "Archive"} records of ${row.topic}-${row.partition}`,
      says: `${what} ${then}.`,
      request: () => ({ method: "POST", where: `${where}/records`, body: { topic: row.topic, partition: row.partition, first: row.first, last: row.last, change: kind } }),
      action: kind === "release" ? "Release" : "Archive",
      danger: kind === "archive",
    });
  }

  function drain() {
    return change({
      title: `Drain ${group}`,
      says: "All records in flight are archived: no member gets them again. Dead letters are written if the group has them.",
      request: () => ({ method: "POST", where: `${where}/drain`, body: {} }),
      action: "Archive all",
      danger: true,
      done: (result) => `${result.result.partitions.reduce((sum, each) => sum + each.records, 0)} records were archived`,
    });
  }

  async function remove() {
    const gone = await change({
      title: `Delete share group ${group}`,
      says: `Share group ${group} and its state are deleted. It must have no members.`,
      request: () => ({ method: "DELETE", where, body: {} }),
      action: "Delete the group",
      danger: true,
    });
    if (gone) location.hash = "#/share";
  }
}
