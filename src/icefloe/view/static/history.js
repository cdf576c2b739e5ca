// The history: the graph of branches and tags, the details of a commit, and the choice of two commits to compare.

import { getJSON } from "./api.js";
import { go, link } from "./app.js";
import { category } from "./colours.js";
import { ago, bytes, h, plural, problem, replace, shortId, spinner, svg, when } from "./dom.js";

const ROW = 46;
const LANE = 18;
const chosen = [];

export async function showHistory(context) {
  const { main, params } = context;
  const limit = Number(params.limit) || 100;
  const found = await getJSON("history", { ref: params.only === "1" ? context.snapshot : null, limit });
  if (!context.isCurrent()) return;
  const details = h("aside", { class: "details", "aria-label": "Commit" });
  const bar = h("div", { class: "selection", hidden: true });
  const list = h("ol", { class: "commits", "aria-label": "Commits, newest first" });
  const graph = drawGraph(found);
  const refs = new Map();
  for (const ref of found.refs) refs.set(ref.snapshot_id, [...(refs.get(ref.snapshot_id) || []), ref]);
  const select = async (commit, push) => {
    for (const row of list.querySelectorAll("li")) row.setAttribute("aria-current", String(row.dataset.id === commit.id));
    if (push) go(link("history", "/", { ...params, commit: commit.id }), true);
    replace(details, spinner());
    try {
      const facts = await getJSON(`commits/${encodeURIComponent(commit.id)}`);
      replace(details, commitDetails(context, facts, refs.get(commit.id) || []));
    } catch (error) {
      replace(details, problem(error));
    }
  };
  for (const commit of found.commits) list.append(commitRow(context, commit, refs.get(commit.id) || [], select, bar));
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.matches("button.commit")) return;
    event.preventDefault();
    const rows = [...list.querySelectorAll("button.commit")];
    rows[rows.indexOf(event.target) + step]?.focus();
  });
  updateBar(context, bar);
  const only = h("input", { type: "checkbox", checked: params.only === "1", onchange: (event) => go(link("history", "/", { ...params, only: event.target.checked ? "1" : null })) });
  replace(
    main,
    h("div", { class: "history" },
      h("section", { class: "panel", "aria-label": "History" },
        h("div", { class: "controls" }, h("h1", null, "History"), h("label", { class: "field check" }, only, `Only ${context.ref}`),
          h("span", { class: "dim" }, "Tick two commits to compare them.")),
        bar,
        h("div", { class: "graph" }, graph, list),
        found.more && h("button", { type: "button", class: "more", onclick: () => go(link("history", "/", { ...params, limit: limit * 2 })) }, "Show older commits")),
      details),
  );
  const first = found.commits.find((commit) => commit.id === params.commit) || found.commits.find((commit) => commit.id === context.snapshot) || found.commits[0];
  if (first) await select(first, false);
}

function drawGraph(found) {
  const rows = new Map(found.commits.map((commit, k) => [commit.id, k]));
  const width = 16 + LANE * Math.max(1, found.columns);
  const picture = svg("svg", { class: "lanes", width, height: ROW * found.commits.length, "aria-hidden": "true", focusable: "false" });
  const x = (column) => 14 + LANE * column;
  const y = (row) => ROW / 2 + ROW * row;
  found.commits.forEach((commit, k) => {
    const stroke = category(commit.colour);
    const parent = rows.get(commit.parent_id);
    if (parent !== undefined) {
      const there = found.commits[parent];
      const [x0, y0, x1, y1] = [x(commit.column), y(k), x(there.column), y(parent)];
      const path = x0 === x1 ? `M${x0} ${y0}V${y1}` : `M${x0} ${y0}V${y1 - ROW / 2}C${x0} ${y1 - 6} ${x1} ${y1 - ROW / 2 + 6} ${x1} ${y1}`;
      picture.append(svg("path", { d: path, stroke, class: "edge" }));
    } else if (commit.cut) {
      picture.append(svg("path", { d: `M${x(commit.column)} ${y(k)}v${ROW / 2}`, stroke, class: "edge cut" }));
    }
    const merged = rows.get(commit.merged_id);
    if (merged !== undefined) {
      const there = found.commits[merged];
      const lane = commit.merge ? commit.merge.column : there.column;
      const [x0, y0, x1, x2, y1] = [x(commit.column), y(k), x(lane), x(there.column), y(merged)];
      const bend = `M${x0} ${y0}C${x0} ${y0 + ROW / 2} ${x1} ${y0 + ROW / 3} ${x1} ${Math.min(y0 + ROW * 0.8, y1)}`;
      const end = x1 === x2 ? `V${y1}` : `V${y1 - ROW / 2}C${x1} ${y1 - 6} ${x2} ${y1 - ROW / 2 + 6} ${x2} ${y1}`;
      picture.append(svg("path", { d: bend + end, stroke: category((commit.merge || there).colour), class: "edge merge" }));
    }
  });
  found.commits.forEach((commit, k) => {
    const merge = rows.has(commit.merged_id);
    picture.append(svg("circle", { cx: x(commit.column), cy: y(k), r: merge ? 7 : 5.5, fill: merge ? "var(--surface)" : category(commit.colour), stroke: category(commit.colour), "stroke-width": 2.5 }));
  });
  return picture;
}

function badges(refs) {
  return refs.map((ref) => h("span", { class: `badge ${ref.kind}` }, ref.kind === "tag" ? `⚑ ${ref.name}` : ref.name));
}

function commitRow(context, commit, refs, select, bar) {
  const box = h("input", { type: "checkbox", checked: chosen.includes(commit.id), "aria-label": `Compare ${shortId(commit.id)}: ${commit.message.split("\n")[0]}` });
  box.addEventListener("change", () => {
    if (box.checked) chosen.push(commit.id);
    else chosen.splice(chosen.indexOf(commit.id), 1);
    if (chosen.length > 2) {
      const gone = chosen.shift();
      const other = document.querySelector(`li[data-id="${CSS.escape(gone)}"] input`);
      if (other) other.checked = false;
    }
    updateBar(context, bar);
  });
  return h(
    "li", { "data-id": commit.id, "aria-current": "false" }, box,
    h("button", { type: "button", class: "commit", onclick: () => select(commit, true) },
      h("span", { class: "message" }, badges(refs), commit.message.split("\n")[0] || "(no message)"),
      h("span", { class: "dim" }, h("code", null, shortId(commit.id)), commit.author && ` · ${commit.author}`, ` · ${ago(commit.written_at)}`, commit.merged_id && " · merge")),
  );
}

function updateBar(context, bar) {
  bar.hidden = chosen.length === 0;
  const [from, to] = chosen;
  replace(
    bar,
    chosen.length < 2 ? `${shortId(from || "")} is selected. Select another commit.` : `${shortId(from)} and ${shortId(to)} are selected. `,
    chosen.length === 2 && h("a", { class: "button primary", href: link("compare", "/", { ref: context.params.ref, ...ordered(from, to) }) }, "Compare"),
    h("button", { type: "button", onclick: () => {
      chosen.length = 0;
      for (const box of document.querySelectorAll(".commits input")) box.checked = false;
      updateBar(context, bar);
    } }, "Clear"),
  );
}

// The older commit first: it is lower in the list.
function ordered(one, two) {
  const rows = [...document.querySelectorAll(".commits li")].map((row) => row.dataset.id);
  return rows.indexOf(one) > rows.indexOf(two) ? { from: one, to: two } : { from: two, to: one };
}

function commitDetails(context, facts, refs) {
  const [subject, ...rest] = facts.message.split("\n");
  const metadata = Object.entries(facts.metadata);
  return [
    h("h2", null, subject || "(no message)"),
    badges(refs),
    rest.join("\n").trim() && h("pre", { class: "message" }, rest.join("\n").trim()),
    h("table", { class: "facts" }, h("tbody", null,
      fact("Snapshot", h("code", null, facts.id)),
      fact("Written", `${when(facts.written_at)} (${ago(facts.written_at)})`),
      facts.author && fact("Author", facts.author),
      fact("Parent", facts.parent_id ? h("code", null, facts.parent_id) : "none: the first one"),
      facts.merged_id && fact("Merged", h("code", null, facts.merged_id)),
      fact("Content", `${plural(facts.groups, "group")}, ${plural(facts.arrays, "array")}, ${plural(facts.chunk_references, "chunk")}`),
      fact("Manifests", `${facts.manifests}, ${bytes(facts.manifest_bytes)}`))),
    h("p", { class: "actions" },
      h("a", { class: "button primary", href: link("data", "/", { ref: facts.id }) }, "Browse this snapshot"),
      facts.parent_id && h("a", { class: "button", href: link("compare", "/", { from: facts.parent_id, to: facts.id, ref: context.params.ref }) }, "Compare with parent")),
    h("h3", null, "Changes"),
    facts.changes ? changeList(facts.changes, facts.parent_id, facts.id) : h("p", { class: "dim" }, "This is the first commit."),
    metadata.length > 0 && [h("h3", null, "Metadata"), h("div", { class: "scroll" }, h("table", { class: "facts" }, h("tbody", null, metadata.map(([name, value]) => fact(name, typeof value === "string" ? value : JSON.stringify(value))))))],
  ];
}

function fact(name, value) {
  return h("tr", null, h("th", { scope: "row" }, name), h("td", null, value));
}

const SIGNS = { added: "+", deleted: "−", updated: "~", replaced: "⟳", moved: "→", written: "▦" };

export function changeList(changes, from, to) {
  if (!changes.total) return h("p", { class: "dim" }, "Nothing changed.");
  return h("ul", { class: "changes" }, changes.entries.map((entry) => h(
    "li", { class: entry.change },
    h("span", { class: "sign", title: entry.change, "aria-label": entry.change }, SIGNS[entry.change]),
    entry.change === "deleted"
      ? h("span", { class: "path" }, entry.path)
      : h("a", { class: "path", href: link("data", entry.path, entry.kind === "array" && entry.change !== "added" ? { ref: to, from, view: "compare" } : { ref: to }) }, entry.path),
    h("span", { class: "dim" }, entry.change === "moved" ? `moved from ${entry.from}` : `${entry.kind} ${entry.change}${entry.chunks ? `, ${plural(entry.chunks, "chunk")}` : ""}`),
  )), changes.total > changes.entries.length && h("li", { class: "dim" }, `and ${changes.total - changes.entries.length} more`));
}
