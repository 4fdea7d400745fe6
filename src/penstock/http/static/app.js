// The frame of the console: navigation, the health of the cluster, the theme, shortcuts, and the page of the address.

import { get, path } from "./api.js";
import { fill, h } from "./dom.js";
import { info } from "./dialog.js";
import * as overview from "./pages/overview.js";
import * as nodes from "./pages/nodes.js";
import * as node from "./pages/node.js";
import * as topics from "./pages/topics.js";
import * as topic from "./pages/topic.js";
import * as groups from "./pages/groups.js";
import * as group from "./pages/group.js";
import * as share from "./pages/share.js";
import * as shareGroup from "./pages/share_group.js";
import * as transactions from "./pages/transactions.js";
import * as timeline from "./pages/timeline.js";
import * as moves from "./pages/moves.js";
import * as pipelines from "./pages/pipelines.js";
import * as access from "./pages/access.js";
import * as events from "./pages/events.js";

const PAGES = [
  ["o", "overview", "Overview", overview],
  ["n", "nodes", "Nodes and disks", nodes],
  ["t", "topics", "Topics", topics],
  ["g", "groups", "Groups", groups],
  ["s", "share", "Share groups", share],
  ["x", "transactions", "Transactions", transactions],
  ["q", "timeline", "Quorum and ISR", timeline],
  ["m", "moves", "Moves", moves],
  ["p", "pipelines", "Pipelines", pipelines],
  ["a", "access", "Users and ACLs", access],
  ["e", "events", "Events", events],
];
const DETAILS = { nodes: node, topics: topic, groups: group, share: shareGroup };
const HEALTH_MS = 3000;

let leave = [];
let shownAt = 0;

function parts() {
  return location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
}

async function show() {
  for (const end of leave) end();
  leave = [];
  const turn = ++shownAt;
  const [name = "overview", ...rest] = parts();
  const found = PAGES.find(([, each]) => each === name);
  const module = rest.length && DETAILS[name] ? DETAILS[name] : found?.[3];
  const root = document.getElementById("content");
  for (const link of document.querySelectorAll("#nav a")) {
    link.toggleAttribute("aria-current", link.dataset.page === name);
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
  }
  document.title = `${[found?.[2], ...rest.slice(0, 1)].filter(Boolean).join(": ") || "Not found"} · Penstock`;
  fill(root);
  scrollTo(0, 0);
  if (!module) {
    fill(root, h("p", { class: "calm" }, "There is no such page."));
    return;
  }
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  root.append(problem);
  const view = {
    root,
    rest,
    // Runs `load` now and then every `ms` while the page is visible. A failure is shown, and the next success hides it.
    every(ms, load) {
      let busy = false;
      const run = async () => {
        if (busy || document.hidden) return;
        busy = true;
        try {
          await load();
          problem.hidden = true;
        } catch (error) {
          if (turn === shownAt) {
            problem.textContent = error.message;
            problem.hidden = false;
          }
        }
        busy = false;
      };
      const timer = setInterval(run, ms);
      leave.push(() => clearInterval(timer));
      return run();
    },
    onLeave(end) {
      leave.push(end);
    },
  };
  try {
    await module.show(view);
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  }
}

// The role decides which buttons are shown. The node checks every request: a role that is not known hides nothing.
async function me() {
  try {
    const { principal, role } = await get(path("me"));
    document.documentElement.dataset.role = role;
    document.getElementById("me").textContent = ` · ${principal} (${role})`;
  } catch (error) {
    console.info(`The role of this user is unknown: ${error.message}`);
  }
}

async function health() {
  const place = document.getElementById("health");
  try {
    const seen = await get(path("cluster", "overview"));
    place.textContent = seen.health.text;
    place.className = `pill ${seen.health.mood}`;
    fill(document.getElementById("cluster"), "cluster ", h("code", {}, seen.cluster_id), ` as node ${seen.seen_by} sees it · ${seen.version}`);
    dispatchEvent(new CustomEvent("overview", { detail: seen }));
  } catch (error) {
    place.textContent = error.status ? error.message : "no answer from this node: what you see is old";
    place.className = "pill bad";
  }
}

function theme(next) {
  if (next) localStorage.setItem("theme", next);
  const chosen = localStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
  dispatchEvent(new Event("themechange"));
}

function switchTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  theme(now === "dark" ? "light" : "dark");
}

function keys() {
  const rows = [
    ...PAGES.map(([key, , title]) => [`g ${key}`, title]),
    ["/", "search"],
    ["↑ ↓ Enter", "move in a table, open a row"],
    ["t", "light or dark"],
    ["Esc", "close a dialog"],
    ["?", "this list"],
  ];
  info("Keyboard", h("dl", { class: "keys" }, rows.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])));
}

let going = false;

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  const page = going && PAGES.find(([key]) => key === event.key);
  going = event.key === "g" && !going;
  if (page) location.hash = `#/${page[1]}`;
  else if (event.key === "?") keys();
  else if (event.key === "t") switchTheme();
  else if (event.key === "/") document.querySelector("#content input[type=search]:not([hidden])")?.focus();
  else return;
  event.preventDefault();
}

theme();
document.getElementById("nav").append(
  ...PAGES.map(([key, name, title]) => h("a", { href: `#/${name}`, "data-page": name, title: `g ${key}` }, title)),
);
document.getElementById("theme").addEventListener("click", switchTheme);
document.getElementById("help").addEventListener("click", keys);
addEventListener("keydown", pressed);
addEventListener("hashchange", show);
me();
show();
health();
setInterval(() => document.hidden || health(), HEALTH_MS);
