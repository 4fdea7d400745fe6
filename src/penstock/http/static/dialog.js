// Dialogs: every change is confirmed in one, which says what will happen and which request is sent.

import { finished, path, send } from "./api.js";
import { button, fill, h } from "./dom.js";

export function note(text, mood = "good") {
  const element = h("p", { class: `note ${mood}` }, text);
  const place = document.getElementById("notes");
  place.append(element);
  while (place.children.length > 4) place.firstElementChild.remove();
  setTimeout(() => element.remove(), mood === "bad" ? 12000 : 5000);
}

function dialog(title, ...children) {
  const element = h("dialog", { "aria-label": title }, h("h2", {}, title), ...children);
  document.body.append(element);
  element.addEventListener("close", () => element.remove());
  element.showModal();
  return element;
}

// A field is {name, label, kind?: text|number|checkbox|textarea|select|password, value?, options?, hint?, required?}.
function control(field) {
  const more = { name: field.name, required: field.required, placeholder: field.hint };
  if (field.kind === "textarea") return h("textarea", { ...more, rows: field.rows || 5, value: field.value ?? "" });
  if (field.kind === "select") {
    return h("select", more, field.options.map((each) => h("option", { value: each, selected: each === field.value }, each)));
  }
  if (field.kind === "checkbox") return h("input", { type: "checkbox", name: field.name, checked: Boolean(field.value) });
  return h("input", { ...more, type: field.kind || "text", value: field.value ?? "", autocomplete: "off" });
}

function values(form, fields) {
  const found = {};
  for (const field of fields) {
    const element = form.elements[field.name];
    if (field.kind === "checkbox") found[field.name] = element.checked;
    else if (element.value === "") continue;
    else found[field.name] = field.kind === "number" ? Number(element.value) : element.value;
  }
  return found;
}

// Asks before a change. `request(values)` returns {method, where, body, says}; it is shown while the fields are edited.
// Resolves with the answer of the node, or with null if the user gave up.
export function change({ title, says, fields = [], request, action = "Do it", danger = false, done }) {
  return new Promise((resolve) => {
    const sentence = h("p", {});
    const preview = h("pre", { class: "preview" });
    const problem = h("p", { class: "problem", role: "alert" });
    const go = h("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
    const progress = h("div", { class: "progress", hidden: true });
    const form = h(
      "form",
      { method: "dialog" },
      sentence,
      fields.map((field) => h("label", { class: field.kind === "checkbox" ? "check" : null }, field.label, control(field))),
      h("details", {}, h("summary", {}, "Request"), preview),
      progress,
      problem,
      h("div", { class: "bar" }, h("span", { class: "grow" }), button("Cancel", () => element.close()), go),
    );
    const element = dialog(title, form);
    let result = null;
    const wanted = () => request(values(form, fields));
    const describe = () => {
      try {
        const { method, where, body, says: more } = wanted();
        fill(sentence, more || says);
        const shown = JSON.stringify(body, (name, value) => (name === "password" ? "…" : value), 2);
        preview.textContent = `${method} ${where}\n${shown}`;
        problem.textContent = "";
        go.disabled = false;
      } catch (error) {
        fill(sentence, says);
        problem.textContent = error.message;
        go.disabled = true;
      }
    };
    form.addEventListener("input", describe);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      try {
        const { method, where, body } = wanted();
        result = await send(method, where, body);
        if (result?.operation && result.progress) result = await shown(result, progress);
        if (result?.state === "failed") throw new Error(result.error);
        note(typeof done === "function" ? done(result) : done || `${title}: done`);
        element.close();
      } catch (error) {
        problem.textContent = error.message;
        go.disabled = false;
      }
    });
    element.addEventListener("close", () => resolve(result));
    describe();
    (form.querySelector("input, select, textarea") || go).focus();
  });
}

// Shows the progress of an operation until it ends. Returns its last state.
export async function shown(operation, place) {
  const bar = h("progress", { max: 1 });
  const text = h("span", {});
  const stop = button("Stop", () => send("POST", path("operations", operation.operation, "cancel")));
  place.hidden = false;
  fill(place, h("p", {}, operation.about), bar, h("div", { class: "bar" }, text, stop));
  return finished(operation, (now) => {
    const { done, total, unit } = now.progress;
    if (total) bar.value = done / total;
    text.textContent = `${now.state}: ${done.toLocaleString("en")}${total ? ` of ${total.toLocaleString("en")}` : ""} ${unit}`;
    stop.hidden = now.state !== "running";
  });
}

export function info(title, ...children) {
  const element = dialog(title, ...children, h("div", { class: "bar" }, h("span", { class: "grow" }), button("Close", () => element.close())));
  return element;
}
