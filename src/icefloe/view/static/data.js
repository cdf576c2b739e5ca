// The data of a revision: the tree of groups and arrays, and the node that is chosen.

import { getJSON } from "./api.js";
import { link } from "./app.js";
import { showArray } from "./array.js";
import { bytes, h, plural, problem, replace, spinner } from "./dom.js";
import { treemap } from "./storage.js";

export async function showData(context) {
  const { main, snapshot, path } = context;
  const panel = h("section", { class: "panel", "aria-label": "Node" });
  const tree = h("div", { class: "tree", role: "tree", "aria-label": "Groups and arrays" });
  const search = h("input", { type: "search", placeholder: "Search paths", "aria-label": "Search paths" });
  const open = window.innerWidth > 760;
  const side = h("details", { class: "side", open }, h("summary", null, "Groups and arrays"), search, tree);
  replace(main, h("div", { class: "data" }, side, panel));
  let wait = 0;
  search.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(() => fillTree(tree, context, search.value.trim()), 150);
  });
  keys(tree);
  fillTree(tree, context, "");
  replace(panel, spinner());
  const node = await getJSON("node", { ref: snapshot, path });
  if (!context.isCurrent()) return;
  if (node.kind === "array") await showArray(context, panel, node);
  else await showGroup(context, panel, node);
}

async function fillTree(tree, context, text) {
  try {
    if (text) {
      const found = await getJSON("search", { ref: context.snapshot, text });
      replace(tree, found.nodes.map((node) => item(context, node, 1, node.path)), found.more && h("p", { class: "dim" }, "There are more."));
      if (!found.nodes.length) replace(tree, h("p", { class: "dim" }, "Nothing has this text in its path."));
      return;
    }
    replace(tree, item(context, { path: "/", name: "/", kind: "group", children: 1 }, 1));
    await unfold(tree.firstElementChild, context, "/", 2);
  } catch (error) {
    replace(tree, problem(error));
  }
}

function item(context, node, level, shown) {
  const chosen = node.path === context.path;
  const name = shown || node.name;
  const row = h("a", {
    class: `row ${node.kind}`, href: link("data", node.path, { ref: context.params.ref }), tabindex: chosen ? "0" : "-1",
    "aria-current": chosen ? "true" : null, style: { "--level": String(level) },
  }, h("span", { class: "glyph", "aria-hidden": "true" }, node.kind === "group" ? "▸" : "▦"), h("span", { class: "name" }, name),
  node.shape && h("span", { class: "dim" }, node.shape.length ? node.shape.join("×") : "scalar"));
  const entry = h("div", {
    role: "treeitem", "aria-level": String(level), "aria-expanded": node.kind === "group" && node.children ? "false" : null,
    "aria-selected": String(chosen), "data-path": node.path, "aria-label": name,
  }, row);
  if (node.kind === "group" && node.children) {
    entry.fold = () => {
      entry.setAttribute("aria-expanded", "false");
      const group = entry.querySelector(":scope > [role=group]");
      if (group) group.remove();
    };
    entry.unfold = () => unfold(entry, context, node.path, level + 1);
    row.firstElementChild.addEventListener("click", (event) => {
      event.preventDefault();
      event.stopPropagation();
      if (entry.getAttribute("aria-expanded") === "true") entry.fold();
      else entry.unfold();
    });
  }
  return entry;
}

async function unfold(entry, context, path, level, offset = 0) {
  entry.setAttribute("aria-expanded", "true");
  const found = await getJSON("tree", { ref: context.snapshot, path, offset });
  let group = entry.querySelector(":scope > [role=group]");
  if (!group) {
    group = h("div", { role: "group" });
    entry.append(group);
  }
  for (const node of found.children) {
    const child = item(context, node, level);
    group.append(child);
    if (node.kind === "group" && node.children && (context.path === node.path || context.path.startsWith(`${node.path}/`))) await child.unfold();
  }
  const done = offset + found.children.length;
  if (done < found.total) {
    const more = h("button", { type: "button", class: "more" }, `Show ${Math.min(500, found.total - done)} more of ${found.total}`);
    more.addEventListener("click", () => {
      more.remove();
      unfold(entry, context, path, level, done);
    });
    group.append(more);
  }
}

function keys(tree) {
  tree.addEventListener("keydown", (event) => {
    const rows = [...tree.querySelectorAll("a.row")];
    const at = rows.indexOf(document.activeElement);
    if (at < 0) return;
    const entry = rows[at].parentElement;
    const expanded = entry.getAttribute("aria-expanded");
    let next = null;
    if (event.key === "ArrowDown") next = rows[at + 1];
    else if (event.key === "ArrowUp") next = rows[at - 1];
    else if (event.key === "Home") next = rows[0];
    else if (event.key === "End") next = rows[rows.length - 1];
    else if (event.key === "ArrowRight" && expanded === "false") entry.unfold();
    else if (event.key === "ArrowRight" && expanded === "true") next = rows[at + 1];
    else if (event.key === "ArrowLeft" && expanded === "true") entry.fold();
    else if (event.key === "ArrowLeft") next = entry.parentElement.closest("[role=treeitem]")?.querySelector("a.row");
    else return;
    event.preventDefault();
    if (next) next.focus();
  });
  tree.addEventListener("focusin", (event) => {
    for (const row of tree.querySelectorAll("a.row[tabindex='0']")) row.tabIndex = -1;
    if (event.target.matches("a.row")) event.target.tabIndex = 0;
  });
}

export function crumbs(path, params) {
  const names = path.split("/").filter(Boolean);
  const trail = h("nav", { class: "crumbs", "aria-label": "Path" }, h("a", { href: link("data", "/", { ref: params.ref }) }, "/"));
  names.forEach((name, k) => {
    const whole = "/" + names.slice(0, k + 1).join("/");
    if (k) trail.append(h("span", { "aria-hidden": "true" }, "/"));
    trail.append(k === names.length - 1 ? h("h1", null, name) : h("a", { href: link("data", whole, { ref: params.ref }) }, name));
  });
  if (!names.length) trail.append(h("h1", { class: "visually-hidden" }, "Root group"));
  return trail;
}

export function attributeTable(attributes) {
  const names = Object.keys(attributes);
  if (!names.length) return h("p", { class: "dim" }, "No attributes.");
  return h("div", { class: "scroll" }, h("table", { class: "facts" }, h("tbody", null, names.map((name) => {
    const value = attributes[name];
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return h("tr", null, h("th", { scope: "row" }, name), h("td", null, text.length > 2000 ? `${text.slice(0, 2000)}…` : text));
  }))));
}

async function showGroup(context, panel, node) {
  const { params, snapshot } = context;
  const found = await getJSON("tree", { ref: snapshot, path: node.path, limit: 200 });
  if (!context.isCurrent()) return;
  const cards = found.children.map((child) => h(
    "a", { class: `card ${child.kind}`, href: link("data", child.path, { ref: params.ref }) },
    h("strong", null, child.name),
    child.kind === "group"
      ? h("span", { class: "dim" }, plural(child.children || 0, "member"))
      : h("span", { class: "dim" }, describe(child)),
  ));
  const sizes = h("div", { class: "sizes" });
  replace(
    panel, crumbs(node.path, params),
    found.children.length ? h("div", { class: "cards" }, cards) : h("p", { class: "empty" }, "This group is empty."),
    found.total > 200 && h("p", { class: "dim" }, `${found.total - 200} more members are in the tree.`),
    h("h2", null, "Attributes"), attributeTable(node.attributes),
    node.truncated && h("p", { class: "dim" }, "The attributes are too large to be shown."), sizes,
  );
  try {
    const all = await getJSON("sizes", { ref: snapshot });
    const start = node.path === "/" ? "/" : `${node.path}/`;
    const inside = all.arrays.filter((each) => each.path.startsWith(start) && each.bytes > 0);
    if (!context.isCurrent() || !inside.length) return;
    const total = inside.reduce((sum, each) => sum + each.bytes, 0);
    replace(sizes, h("h2", null, `Size on storage: ${bytes(total)}`), treemap(inside, (each) => link("data", each.path, { ref: params.ref })));
  } catch (error) {
    replace(sizes, h("p", { class: "dim" }, error.message));
  }
}

export function describe(array) {
  const names = array.dimension_names;
  const shape = array.shape.map((length, k) => (names && names[k] ? `${names[k]}: ${length}` : length)).join(", ");
  return `${array.data_type} (${shape})`;
}
