// Builds elements. Text is always set as a text node, never as HTML: names, keys and values come from anybody.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

export function pill(text, mood = "") {
  return h("span", { class: `pill ${mood}` }, text);
}

export function section(title, ...children) {
  return h("section", {}, h("h2", {}, title), ...children);
}

// A button that can't be pressed twice while its action runs. A button that begins a change has "…" at the end of its label,
// or `changes`: users with the role view don't see it.
export function button(label, action, { danger = false, primary = false, changes = label.endsWith("…"), title } = {}) {
  const kind = [danger ? "danger" : primary && "primary", changes && "changes"].filter(Boolean).join(" ");
  const element = h("button", { type: "button", class: kind, title }, label);
  element.addEventListener("click", async () => {
    element.disabled = true;
    try {
      await action();
    } finally {
      element.disabled = false;
    }
  });
  return element;
}

export function cards(pairs) {
  return h("dl", { class: "cards" }, pairs.map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value))));
}

// Returns a function that runs `draw` a moment later, once for all calls until then: a busy stream must not freeze the page.
export function soon(draw, ms = 250) {
  let timer = 0;
  return () => {
    timer ||= setTimeout(() => {
      timer = 0;
      draw();
    }, ms);
  };
}
