// The frame of the page: the address in the hash, the head with refs and views, and the view that is shown.

import { getJSON } from "./api.js";
import { showCompare } from "./compare.js";
import { showData } from "./data.js";
import { append, h, problem, replace, shortId, spinner } from "./dom.js";
import { showHistory } from "./history.js";
import { showMaintenance } from "./maintenance.js";
import { showStorage } from "./storage.js";

const VIEWS = {
  data: ["Data", showData],
  history: ["History", showHistory],
  storage: ["Storage", showStorage],
  maintenance: ["Maintenance", showMaintenance],
  compare: [null, showCompare],
};

const main = document.getElementById("main");
let repository = null;
let shown = null;

// The address: { tab, path, params }. `ref` is a parameter.
export function address() {
  const text = location.hash.replace(/^#\/?/, "");
  const [where, query] = text.split("?");
  const [tab, ...names] = where.split("/");
  const params = Object.fromEntries(new URLSearchParams(query || ""));
  return { tab: VIEWS[tab] ? tab : "data", path: "/" + names.map(decodeURIComponent).join("/"), params };
}

export function link(tab, path, params) {
  const names = (path || "/").split("/").filter(Boolean).map(encodeURIComponent).join("/");
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params || {})) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return `#/${tab}/${names}${text ? `?${text}` : ""}`;
}

// Go to another address. `quiet` replaces the entry of the browser's history and draws nothing.
export function go(hash, quiet) {
  if (quiet) history.replaceState(null, "", hash);
  else location.hash = hash;
}

export function currentRef() {
  return address().params.ref || defaultRef();
}

function defaultRef() {
  const branches = repository.refs.filter((ref) => ref.kind === "branch");
  return (branches.find((ref) => ref.name === "main") || branches[0] || repository.refs[0] || { name: "main" }).name;
}

function fillHead() {
  const place = document.getElementById("repository");
  const name = repository.url.replace(/\/+$/, "").split("/").pop() || repository.url;
  replace(place, name);
  place.title = `${repository.url} (${repository.generation})`;
  document.title = `${name} – Icefloe`;
  const { tab, params } = address();
  const ref = currentRef();
  const tabs = document.getElementById("tabs");
  replace(tabs);
  for (const [key, [title]] of Object.entries(VIEWS)) {
    if (!title) continue;
    tabs.append(h("a", { href: link(key, "/", { ref: params.ref }), "aria-current": key === tab ? "page" : null }, title));
  }
  const select = document.getElementById("ref");
  replace(select);
  for (const [kind, label] of [["branch", "Branches"], ["tag", "Tags"]]) {
    const refs = repository.refs.filter((each) => each.kind === kind);
    if (refs.length) append(select, [h("optgroup", { label }, refs.map((each) => h("option", { value: each.name }, each.name)))]);
  }
  if (!repository.refs.some((each) => each.name === ref)) {
    select.append(h("option", { value: ref }, ref.includes("@") ? ref : `snapshot ${shortId(ref)}`));
  }
  select.value = ref;
}

function notice(text) {
  const place = document.getElementById("notice");
  replace(place, text);
  place.hidden = !text;
}

async function draw() {
  const { tab, path, params } = address();
  if (shown && shown.leave) shown.leave();
  const mine = {};
  shown = mine;
  try {
    if (!repository) {
      replace(main, spinner());
      repository = await getJSON("repository");
    }
    fillHead();
    const ref = currentRef();
    const revision = tab === "compare" ? null : await getJSON("revision", { ref });
    if (shown !== mine) return;
    const context = { tab, path, params, ref, snapshot: revision && revision.snapshot_id, repository, main, isCurrent: () => shown === mine, onleave: (run) => (mine.leave = run) };
    await VIEWS[tab][1](context);
  } catch (error) {
    if (shown === mine && error.name !== "AbortError") replace(main, problem(error));
  }
}

function changeRef(ref) {
  const { tab, path, params } = address();
  go(link(tab, path, { ...params, ref }));
}

document.getElementById("ref").addEventListener("change", (event) => changeRef(event.target.value));
document.getElementById("refresh").addEventListener("click", async () => {
  const before = JSON.stringify(repository && repository.refs);
  try {
    repository = await getJSON("repository");
  } catch (error) {
    notice(error.message);
    return;
  }
  notice(before === JSON.stringify(repository.refs) ? "No new commits." : "The branches and tags were read again.");
  setTimeout(() => notice(""), 2500);
  draw();
});
document.getElementById("as-of").addEventListener("click", () => {
  const branch = currentRef().split("@")[0];
  const input = h("input", { type: "datetime-local", step: "1", "aria-label": "Time in UTC", value: new Date().toISOString().slice(0, 19) });
  const dialog = h(
    "dialog", { "aria-label": "Show a branch at a time" },
    h("form", { method: "dialog" },
      h("h2", null, "Go back in time"),
      h("p", null, "Show ", h("strong", null, branch), " as it was at this time, in UTC."),
      input,
      h("menu", null, h("button", { type: "submit", value: "no" }, "Cancel"), h("button", { type: "submit", value: "yes", class: "primary" }, "Show")),
    ),
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (dialog.returnValue === "yes" && input.value) changeRef(`${branch}@${input.value.length === 16 ? `${input.value}:00` : input.value}Z`);
  });
  document.body.append(dialog);
  dialog.showModal();
});
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("icefloe-theme", root.dataset.theme);
  } catch (error) {
    // The choice is lost when the page is closed.
  }
  window.dispatchEvent(new Event("theme"));
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", draw);
draw();
