// Tables whose rows keep their elements, and thus focus and selection, while their contents are refreshed.

import { fill, h } from "./dom.js";

// A column is {title, cell: row => text or node, number?: true, wide?: true}.
export class Table {
  constructor(columns, { key, open, empty = "There is nothing here.", caption } = {}) {
    this.columns = columns;
    this.key = key || ((row) => JSON.stringify(row));
    this.open = open;
    this.rows = new Map();
    this.body = h("tbody");
    this.note = h("p", { class: "calm" }, empty);
    const head = columns.map((each) => h("th", { scope: "col", class: kind(each) }, each.title));
    this.table = h("table", {}, caption && h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), this.body);
    this.element = h("div", { class: "table" }, this.table, this.note);
    this.update([]);
  }

  update(rows) {
    const kept = new Map();
    const elements = [];
    for (const row of rows) {
      const name = this.key(row);
      if (kept.has(name)) continue;
      const element = this.rows.get(name) || this.made();
      element.row = row;
      const contents = JSON.stringify(row);
      if (element.contents !== contents) this.fillRow(element, row); // an unchanged row keeps its buttons under the pointer
      element.contents = contents;
      kept.set(name, element);
      elements.push(element);
    }
    this.rows = kept;
    if (elements.length !== this.body.children.length || elements.some((each, at) => this.body.children[at] !== each)) {
      this.body.replaceChildren(...elements);
    }
    this.table.hidden = rows.length === 0;
    this.note.hidden = rows.length > 0;
  }

  made() {
    const element = h("tr", this.open ? { tabindex: 0, class: "opens" } : {});
    if (this.open) {
      element.addEventListener("click", (event) => {
        if (!event.target.closest("button, a, input")) this.open(element.row, element);
      });
      element.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && event.target === element) this.open(element.row, element);
        if (event.key === "ArrowDown") element.nextElementSibling?.focus();
        if (event.key === "ArrowUp") element.previousElementSibling?.focus();
      });
    }
    return element;
  }

  fillRow(element, row) {
    this.columns.forEach((column, at) => {
      const shown = column.cell(row);
      let cell = element.children[at];
      if (!cell) {
        cell = h("td", { class: kind(column), "data-title": column.title });
        element.append(cell);
      }
      if (shown instanceof Node || Array.isArray(shown)) {
        if (!cell.contains(document.activeElement)) fill(cell, shown);
      } else if (cell.textContent !== String(shown ?? "") || cell.children.length) {
        cell.textContent = String(shown ?? "");
      }
    });
  }
}

function kind(column) {
  return [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ") || null;
}

// A table that is paged and searched by the server. `load({start, limit, search})` returns {total, rows}.
export class PagedTable {
  constructor(columns, load, { limit = 50, search = true, hint = "search", ...options } = {}) {
    this.load = load;
    this.limit = limit;
    this.start = 0;
    this.total = 0;
    this.asked = 0;
    this.table = new Table(columns, options);
    this.input = h("input", { type: "search", placeholder: hint, "aria-label": hint, class: "search", hidden: !search });
    let timer = 0;
    this.input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.go(0), 200);
    });
    this.before = h("button", { type: "button", onclick: () => this.go(this.start - this.limit) }, "‹ previous");
    this.after = h("button", { type: "button", onclick: () => this.go(this.start + this.limit) }, "next ›");
    this.count = h("span", { class: "calm" });
    this.tools = h("div", { class: "tools" });
    this.element = h(
      "div",
      {},
      h("div", { class: "bar" }, this.input, this.tools, h("span", { class: "grow" }), this.count, this.before, this.after),
      this.table.element,
    );
  }

  async go(start) {
    this.start = Math.max(0, start);
    await this.refresh();
  }

  async refresh() {
    const asked = ++this.asked;
    const { total, rows } = await this.load({ start: this.start, limit: this.limit, search: this.input.value });
    if (asked !== this.asked) return; // an answer to an older question
    this.total = total;
    this.table.update(rows);
    const last = Math.min(total, this.start + rows.length);
    this.count.textContent = total ? `${this.start + 1}–${last} of ${total.toLocaleString("en")}` : "";
    this.before.hidden = this.after.hidden = total <= this.limit;
    this.before.disabled = this.start === 0;
    this.after.disabled = this.start + this.limit >= total;
  }
}
