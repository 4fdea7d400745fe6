// The messages of a topic: read from an offset or a time, followed, filtered, searched, exported, produced, replayed.

import { follow, get, path, query, send } from "../api.js";
import { change, info, note, shown } from "../dialog.js";
import { button, fill, h, section, soon } from "../dom.js";
import { bytes, number, time } from "../format.js";
import { Table } from "../table.js";
import { VIEWS, dataView, short } from "./record_view.js";

const TAIL_MAX = 200;

export async function messagesTab(view, place, topic, partitions) {
  const partition = h("select", { "aria-label": "partition" }, Array.from({ length: Math.min(partitions, 10000) }, (_, at) => h("option", { value: at }, `partition ${at}`)));
  const from = h("select", { "aria-label": "from" }, ["newest", "oldest", "offset", "time"].map((each) => h("option", { value: each }, each)));
  const at = h("input", { class: "at", "aria-label": "offset or time", hidden: true });
  const contains = h("input", { type: "search", class: "search", placeholder: "only with this text", "aria-label": "filter" });
  const limit = h("select", { "aria-label": "records" }, [50, 100, 500].map((each) => h("option", { value: each }, each)));
  const views = Object.fromEntries(["key", "value"].map((part) => [`${part}_view`, viewSelect(part)]));
  const wantedViews = () => Object.fromEntries(Object.entries(views).map(([name, each]) => [name, each.value]));
  const told = h("p", { class: "calm" });
  const progress = h("div", { class: "progress", hidden: true });
  let rows = [];
  let next = null;
  let stop = null;
  const table = new Table(
    [
      { title: "partition", cell: (row) => row.partition },
      { title: "offset", number: true, cell: (row) => number(row.offset) },
      { title: "time", cell: (row) => time(row.timestamp_ms) },
      { title: "key", cell: (row) => short(row.key) },
      { title: "value", wide: true, cell: (row) => (row.left_out ? `${bytes(row.size)}, too long to show here` : short(row.value)) },
      { title: "headers", number: true, cell: (row) => (row.headers.length + row.headers_left_out ? number(row.headers.length + row.headers_left_out) : "") },
    ],
    { key: (row) => `${row.partition}-${row.offset}`, open: (row) => detail(topic, row), empty: "No messages here." },
  );
  const draw = (found) => {
    rows = found;
    table.update(rows);
  };
  from.addEventListener("change", () => {
    at.hidden = !["offset", "time"].includes(from.value);
    at.type = from.value === "time" ? "datetime-local" : "number";
    at.value = "";
  });

  async function start() {
    const wanted = { partition: partition.value, limit: limit.value, contains: contains.value, ...wantedViews() };
    if (from.value === "offset") return { ...wanted, offset: Number(at.value || 0) };
    if (from.value === "time") return { ...wanted, timestamp_ms: at.value ? new Date(at.value).getTime() : 0 };
    if (from.value === "oldest") return wanted;
    const probe = await get(path("topics", topic, "records") + query({ partition: partition.value, limit: 1 }));
    const first = probe.records[0]?.offset ?? probe.end_offset;
    return { ...wanted, offset: Math.max(first, probe.end_offset - Number(limit.value)) };
  }

  async function read(more = null) {
    endTail();
    const wanted = more ?? (await start());
    const found = await get(path("topics", topic, "records") + query(wanted));
    next = found.next_offset < found.end_offset ? { ...wanted, offset: found.next_offset, timestamp_ms: undefined } : null;
    draw(from.value === "newest" && !more ? found.records.reverse() : found.records);
    further.disabled = next === null;
    told.textContent = `${found.records.length} records, read up to offset ${number(found.next_offset)} of ${number(found.end_offset)}${leftOut(found)}.`;
  }

  function tail() {
    if (stop) return endTail();
    draw([]);
    let skipped = 0;
    const fresh = [];
    const later = soon(() => draw([...fresh]));
    const where = path("topics", topic, "records", "stream") + query({ contains: contains.value, ...wantedViews() });
    const left = { batches_left_out: 0, problems: [] };
    const told_ = (open) => fill(told, h("span", { class: open ? "live" : "problem" }, open ? "● live" : "connecting…"), ` the newest ${TAIL_MAX} records of all partitions${skipped ? `; ${number(skipped)} were skipped, because they came too fast` : ""}${leftOut(left)}`);
    const close = follow(
      where,
      {
        record: (row) => {
          fresh.unshift(row);
          fresh.length = Math.min(fresh.length, TAIL_MAX);
          later();
        },
        problem: ({ detail: why }) => {
          endTail();
          note(why, "bad");
        },
        skipped: ({ records }) => {
          skipped += records;
          told_(true);
        },
        left_out: ({ partition: of, detail: why }) => {
          left.batches_left_out += 1;
          left.problems = [`partition ${of}: ${why}`];
          told_(true);
        },
      },
      told_,
    );
    stop = close;
    live.textContent = "Stop";
    live.setAttribute("aria-pressed", "true");
  }

  function endTail() {
    stop?.();
    stop = null;
    live.textContent = "Live tail";
    live.setAttribute("aria-pressed", "false");
  }

  async function search() {
    if (!contains.value) {
      note("Type the text to search for.", "bad");
      contains.focus();
      return;
    }
    endTail();
    const body = { contains: contains.value, limit: Number(limit.value), ...wantedViews() };
    const ended = await shown(await send("POST", path("topics", topic, "search"), body), progress);
    progress.hidden = true;
    draw(ended.result.records || []);
    told.textContent = `${rows.length} records found by a search of the whole topic (${ended.state})${leftOut(ended.result)}. ${ended.notes.join(" ")}`;
  }

  function download() {
    const lines = rows.map((row) => JSON.stringify(row)).join("\n");
    const url = URL.createObjectURL(new Blob([`${lines}\n`], { type: "application/x-ndjson" }));
    h("a", { href: url, download: `${topic}.jsonl` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    note(`${rows.length} records were exported`);
  }

  const safely = (work) => async () => {
    try {
      await work();
    } catch (error) {
      note(error.message, "bad");
    }
  };
  const further = button("Next ›", safely(() => read(next)));
  const live = button("Live tail", safely(async () => tail()));
  view.onLeave(() => stop?.());
  fill(
    place,
    h("div", { class: "bar" }, partition, from, at, limit, contains, button("Read", safely(() => read()), { primary: true }), further, live),
    h("div", { class: "bar" }, Object.values(views), button("Search the whole topic", safely(search), { changes: true }), button("Export", download), button("Produce…", () => produce(topic))),
    progress,
    told,
    table.element,
  );
  for (const each of Object.values(views)) each.addEventListener("change", safely(() => read()));
  contains.addEventListener("keydown", (event) => event.key === "Enter" && safely(() => read())());
  await safely(() => read())();
}

// What an answer has left out, in words: batches that can't be decoded or are too large.
function leftOut({ batches_left_out: count, problems }) {
  if (!count) return "";
  return `; ${number(count)} ${count === 1 ? "batch is" : "batches are"} left out (${problems[problems.length - 1].replace(/\.$/, "")})`;
}

function viewSelect(part) {
  return h("select", { "aria-label": `view of ${part}s` }, Object.entries(VIEWS).map(([name, title]) => h("option", { value: name }, `${part}s ${title === "by schema" ? title : `as ${title}`}`)));
}

function detail(topic, row) {
  const element = info(
    `${topic}-${row.partition} at offset ${row.offset}`,
    h("p", { class: "calm" }, `${time(row.timestamp_ms)} · ${bytes(row.size)}`),
    h("div", { class: "detail" }, dataView("Key", row.key), dataView("Value", row.value)),
    row.headers.length ? section("Headers", row.headers.map((each) => dataView(each.name, each.value))) : null,
    row.headers_left_out ? h("p", { class: "calm" }, `${number(row.headers_left_out)} more headers are not shown.`) : null,
    row.left_out || row.headers_left_out ? h("p", { class: "calm" }, "It can't be replayed from here, because a part of it is not shown.") : h("div", { class: "bar" }, button("Replay…", () => {
      element.close();
      return replay(topic, row);
    })),
  );
}

function replay(topic, row) {
  const body = { headers: Object.fromEntries(row.headers.filter((each) => each.value === null || each.value.text !== undefined).map((each) => [each.name, each.value?.text ?? null])) };
  for (const name of ["key", "value"]) {
    if (row[name]?.text !== undefined) body[name] = row[name].text;
    else if (row[name]) body[`${name}_base64`] = row[name].base64;
  }
  return change({
    title: "Replay a record",
    says: "A copy is appended.",
    fields: [{ name: "to", label: "To topic", value: topic, required: true }],
    request: ({ to }) => ({
      method: "POST",
      where: path("topics", to || "", "records"),
      body: { records: [body] },
      says: `A copy of the record at offset ${row.offset} of ${topic}-${row.partition} is appended to ${to}. Consumers of ${to} read it as a new record.`,
    }),
    action: "Append the copy",
    done: (result) => `Appended at offset ${result.offsets[0].offset}`,
  });
}

function produce(topic) {
  return change({
    title: `Produce to ${topic}`,
    says: `One record is appended to ${topic}.`,
    fields: [
      { name: "key", label: "Key", hint: "none" },
      { name: "value", label: "Value", kind: "textarea" },
      { name: "partition", label: "Partition", kind: "number", hint: "chosen by the key" },
      { name: "headers", label: "Headers, one name=value per line", kind: "textarea", rows: 2 },
    ],
    request: ({ headers = "", ...record }) => {
      const pairs = headers.split("\n").filter((each) => each.includes("=")).map((each) => [each.slice(0, each.indexOf("=")), each.slice(each.indexOf("=") + 1)]);
      const whole = { ...record, ...(pairs.length ? { headers: Object.fromEntries(pairs) } : {}) };
      return { method: "POST", where: path("topics", topic, "records"), body: { records: [whole] } };
    },
    action: "Append",
    done: (result) => `Appended to partition ${result.offsets[0].partition} at offset ${result.offsets[0].offset}`,
  });
}
