// Fetches the page again every two seconds and puts in place what has changed. Waits while nobody looks.
"use strict";

const EVERY_MS = 2000;
const LIMIT_MS = 10000;

function take(fresh, id) {
  const now = document.getElementById(id);
  const next = fresh.getElementById(id);
  if (!now || !next) return;
  if (now.className !== next.className) now.className = next.className;
  replace(now, next);
}

// Only what differs is touched: what somebody has selected or scrolled stays.
function replace(now, next) {
  if (now.innerHTML === next.innerHTML) return;
  const old = Array.from(now.children);
  const fresh = Array.from(next.children);
  const alike = old.length > 0 && old.length === fresh.length && old.every((each, at) => each.tagName === fresh[at].tagName);
  if (!alike) {
    now.replaceChildren(...Array.from(next.childNodes, (each) => document.importNode(each, true)));
    return;
  }
  old.forEach((each, at) => {
    if (each.outerHTML === fresh[at].outerHTML) return;
    if (each.cloneNode(false).outerHTML === fresh[at].cloneNode(false).outerHTML && each.children.length > 0 && !hasText(each)) {
      replace(each, fresh[at]);
    } else {
      each.replaceWith(document.importNode(fresh[at], true));
    }
  });
}

function hasText(element) {
  return Array.from(element.childNodes).some((each) => each.nodeType === Node.TEXT_NODE && each.data.trim());
}

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch("/", { signal: AbortSignal.timeout(LIMIT_MS), cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.title = fresh.title;
    take(fresh, "health");
    take(fresh, "live");
    told(false);
  } catch {
    told(true);
  }
}

function told(silent) {
  document.getElementById("silence").hidden = !silent;
  document.body.classList.toggle("old", silent);
}

async function run() {
  for (;;) {
    await new Promise((resume) => setTimeout(resume, EVERY_MS));
    await refresh();
  }
}

document.addEventListener("visibilitychange", refresh);
run();
