// Two revisions: what was added, deleted, updated and written between them.

import { getJSON } from "./api.js";
import { go, link } from "./app.js";
import { h, plural, replace, shortId, spinner, when } from "./dom.js";
import { changeList } from "./history.js";

export async function showCompare(context) {
  const { main, params, repository } = context;
  const from = params.from || context.ref;
  const to = params.to || context.ref;
  replace(main, spinner("Comparing…"));
  const [changes, old, now] = await Promise.all([
    getJSON("diff", { from, to }), getJSON(`commits/${encodeURIComponent(from)}`), getJSON(`commits/${encodeURIComponent(to)}`),
  ]);
  if (!context.isCurrent()) return;
  const choice = (label, value, change) => {
    const names = [...new Set([...repository.refs.map((ref) => ref.name), value])];
    const select = h("select", { "aria-label": label }, names.map((name) => h("option", { value: name }, /^[0-9A-Z]{20,26}$/.test(name) ? `snapshot ${shortId(name)}` : name)));
    select.value = value;
    select.addEventListener("change", () => go(link("compare", "/", { ...params, from, to, ...change(select.value) })));
    return h("label", { class: "field" }, label, select);
  };
  const side = (title, commit) => h("div", { class: "card" }, h("span", { class: "dim" }, title), h("strong", null, commit.message.split("\n")[0]), h("span", { class: "dim" }, h("code", null, shortId(commit.id)), ` · ${when(commit.written_at)}`));
  replace(
    main,
    h("section", { class: "panel narrow", "aria-label": "Comparison" },
      h("h1", null, "Comparison"),
      h("div", { class: "controls" }, choice("From", from, (value) => ({ from: value })), choice("To", to, (value) => ({ to: value })),
        h("a", { class: "button", href: link("compare", "/", { ...params, from: to, to: from }) }, "Swap")),
      h("div", { class: "cards two" }, side("From", old), side("To", now)),
      h("h2", null, `${plural(changes.total, "changed node")}, ${plural(changes.chunks, "written chunk")}`),
      changeList(changes, changes.from, changes.to)),
  );
}
