// Talks to the REST API of this node. Every failure is an Error with the sentence of the problem details.

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export function path(...parts) {
  return `/v1/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
}

export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

async function answer(response) {
  let value = null;
  try {
    value = await response.json();
  } catch {
    // The body is not JSON: the status says enough.
  }
  if (!response.ok) throw new Refused(response.status, value?.detail || `The node answered ${response.status}.`);
  return value;
}

export async function get(where) {
  return answer(await fetch(where, { headers: { Accept: "application/json" } }));
}

export async function send(method, where, body = {}) {
  const sent = { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return answer(await fetch(where, sent));
}

// Follows server-sent events until the returned function is called. `onState` gets true while the stream is open.
export function follow(where, handlers, onState = () => {}) {
  const source = new EventSource(where);
  source.onopen = () => onState(true);
  source.onerror = () => onState(false);
  for (const [kind, handle] of Object.entries(handlers)) {
    source.addEventListener(kind, (event) => handle(JSON.parse(event.data)));
  }
  return () => source.close();
}

// Waits for an operation. Calls `onProgress` with each of its states; returns the last one.
export async function finished(begun, onProgress = () => {}) {
  let operation = begun;
  for (;;) {
    onProgress(operation);
    if (operation.state !== "running") return operation;
    await new Promise((resolve) => setTimeout(resolve, 300));
    operation = await get(path("operations", operation.operation));
  }
}
