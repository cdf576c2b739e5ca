// Sizes on storage: a treemap of the arrays, a table, and the growth over commits.

import { getJSON } from "./api.js";
import { link } from "./app.js";
import { category } from "./colours.js";
import { bytes, h, plural, problem, replace, shortId, spinner, svg, when } from "./dom.js";
import { ticks } from "./scale.js";

export async function showStorage(context) {
  const { main, params, snapshot } = context;
  const sizesPlace = h("div", null, spinner("Adding up sizes…"));
  const growthPlace = h("div", null, spinner("Reading the history…"));
  replace(main, h("section", { class: "panel narrow", "aria-label": "Storage" }, h("h1", null, "Storage"), sizesPlace, h("h2", null, "Growth"), growthPlace));
  const sizes = getJSON("sizes", { ref: snapshot }).then((found) => {
    if (!context.isCurrent()) return;
    const filled = found.arrays.filter((each) => each.bytes > 0);
    const at = (each) => link("data", each.path, { ref: params.ref, view: "chunks" });
    replace(
      sizesPlace,
      h("p", { class: "lead" }, `${bytes(found.bytes)} in ${plural(found.chunks, "chunk")} of ${plural(found.total_arrays, "array")}, ${plural(found.manifests, "manifest")} of ${bytes(found.manifest_bytes)}.`),
      filled.length ? treemap(filled, at) : h("p", { class: "empty" }, "No chunks were written."),
      h("div", { class: "scroll" }, h("table", { class: "values left" },
        h("thead", null, h("tr", null, ["Array", "Size", "Chunks", "Native", "Inline", "Virtual"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, found.arrays.slice(0, 200).map((each) => h("tr", null,
          h("th", { scope: "row" }, h("a", { href: at(each) }, each.path)), h("td", null, bytes(each.bytes)), h("td", null, `${each.chunks} of ${each.cells}`),
          ["native", "inline", "virtual"].map((kind) => h("td", null, each[kind].chunks || "·"))))))));
  }).catch((error) => replace(sizesPlace, problem(error)));
  const growth = getJSON("growth", { ref: snapshot }).then((found) => {
    if (context.isCurrent()) replace(growthPlace, growthChart(context, found));
  }).catch((error) => replace(growthPlace, problem(error)));
  await Promise.all([sizes, growth]);
}

// Squarified treemap (Bruls, Huizing, van Wijk).
export function treemap(arrays, at) {
  const width = 1000;
  const height = 320;
  const shown = arrays.slice(0, 200);
  const total = shown.reduce((sum, each) => sum + each.bytes, 0);
  const picture = svg("svg", { class: "treemap", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Sizes of arrays" });
  const items = shown.map((each) => ({ each, area: (each.bytes / total) * width * height }));
  const groups = new Map();
  for (const { x, y, w, hgt, item } of squarify(items, 0, 0, width, height)) {
    const group = item.each.path.split("/").slice(0, -1).join("/") || item.each.path;
    if (!groups.has(group)) groups.set(group, groups.size);
    const label = item.each.path.split("/").pop();
    const text = w > 60 && hgt > 30;
    const fits = Math.max(3, Math.floor(w / 8.2));
    picture.append(svg("a", { href: at(item.each), "aria-label": `${item.each.path}, ${bytes(item.each.bytes)}` },
      svg("rect", { x: x + 1, y: y + 1, width: Math.max(0, w - 2), height: Math.max(0, hgt - 2), rx: 4, fill: category(groups.get(group)) }),
      svg("title", null, `${item.each.path}: ${bytes(item.each.bytes)}`),
      text && svg("text", { x: x + 10, y: y + 22, class: "name" }, label.length > fits ? `${label.slice(0, fits - 1)}…` : label),
      text && hgt > 46 && svg("text", { x: x + 10, y: y + 39, class: "size" }, bytes(item.each.bytes))));
  }
  return h("div", { class: "treemap-frame" }, picture);
}

function* squarify(items, x, y, w, hgt) {
  let rest = items;
  while (rest.length) {
    const side = Math.min(w, hgt);
    if (side <= 0) return;
    let row = [rest[0]];
    let sum = rest[0].area;
    for (let k = 1; k < rest.length; k++) {
      const next = [...row, rest[k]];
      if (worst(next, sum + rest[k].area, side) > worst(row, sum, side)) break;
      row = next;
      sum += rest[k].area;
    }
    const thick = sum / side;
    let offset = 0;
    for (const item of row) {
      const length = item.area / thick;
      yield w >= hgt ? { x, y: y + offset, w: thick, hgt: length, item } : { x: x + offset, y, w: length, hgt: thick, item };
      offset += length;
    }
    if (w >= hgt) {
      x += thick;
      w -= thick;
    } else {
      y += thick;
      hgt -= thick;
    }
    rest = rest.slice(row.length);
  }
}

function worst(row, sum, side) {
  const areas = row.map((item) => item.area);
  return Math.max((side * side * Math.max(...areas)) / (sum * sum), (sum * sum) / (side * side * Math.min(...areas)));
}

function growthChart(context, found) {
  const { commits } = found;
  const width = 1000;
  const height = 260;
  const left = 76;
  const bottom = 34;
  const most = Math.max(1, ...commits.map((each) => Math.max(each.bytes, each.added_bytes)));
  const x = (k) => left + ((k + 0.5) / commits.length) * (width - left - 10);
  const y = (value) => 12 + (1 - value / (most * 1.05)) * (height - 12 - bottom);
  const picture = svg("svg", { class: "growth", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Size over commits" });
  for (const value of ticks(0, most, 4)) {
    picture.append(svg("line", { x1: left, x2: width - 10, y1: y(value), y2: y(value), class: "grid" }), svg("text", { x: left - 8, y: y(value) + 4, class: "tick" }, bytes(Math.round(value))));
  }
  const size = Math.min(36, ((width - left) / commits.length) * 0.6);
  commits.forEach((commit, k) => {
    const label = `${commit.message.split("\n")[0]} (${shortId(commit.id)}, ${when(commit.written_at)}): ${bytes(commit.bytes)}, ${bytes(commit.added_bytes)} new`;
    picture.append(svg("a", { href: link("history", "/", { ref: context.params.ref, commit: commit.id }), "aria-label": label },
      svg("title", null, label),
      svg("rect", { x: x(k) - Math.max(size, 8) / 2, y: 12, width: Math.max(size, 8), height: height - 12 - bottom, fill: "transparent" }),
      svg("rect", { x: x(k) - size / 2, y: y(commit.added_bytes), width: size, height: Math.max(0, y(0) - y(commit.added_bytes)), rx: 2, class: "added" }),
      svg("circle", { cx: x(k), cy: y(commit.bytes), r: 4, class: "total" })));
    const every = Math.ceil(commits.length / 8);
    if (k % every === 0) picture.append(svg("text", { x: x(k), y: height - 12, class: "tick middle" }, commit.written_at.slice(0, 10)));
  });
  picture.append(svg("path", { d: commits.map((commit, k) => `${k ? "L" : "M"}${x(k)} ${y(commit.bytes)}`).join(""), class: "line" }));
  return [
    h("div", { class: "treemap-frame" }, picture),
    h("p", { class: "legend" }, h("span", { class: "entry" }, h("i", { class: "line" }), "size of the content"), h("span", { class: "entry" }, h("i", { class: "added" }), "bytes that the commit added"),
      found.more && h("span", { class: "dim" }, `The newest ${commits.length} commits.`)),
  ];
}
