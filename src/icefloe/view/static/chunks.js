// The chunk grid of an array, coloured by kind, object, size or the commit that wrote a chunk.

import { getJSON } from "./api.js";
import { address, go, link } from "./app.js";
import { axisChoice, chunkOf, sliders } from "./array.js";
import { category, css, table } from "./colours.js";
import { bytes, h, plural, problem, replace, shortId, spinner } from "./dom.js";

const KIND_COLOURS = { absent: null, inline: category(2), native: category(0), packed: category(1), virtual: category(3) };
const MEANINGS = {
  absent: "never written", inline: "in the manifest", native: "an object of its own", packed: "shares an object", virtual: "in another file",
};

export async function showChunks(context, state, body) {
  const { params } = context;
  const grid = state.node.grid;
  const plane = state.rank > 1 ? [state.y, state.x] : state.rank ? [0] : [];
  // The plane with the most chunks says most.
  if (state.rank > 1 && params.x === undefined) {
    const order = grid.map((count, k) => [count, k]).sort((a, b) => b[0] - a[0]).slice(0, 2).map(([, k]) => k).sort((a, b) => a - b);
    [state.y, state.x] = order;
    [plane[0], plane[1]] = order;
  }
  const colour = params.colour || "kind";
  const place = h("div", { class: "chunkmap" }, spinner("Reading references…"));
  const legend = h("div", { class: "legend" });
  const tip = h("p", { class: "status", role: "status" }, " ");
  const chunkState = { ...state, index: state.index.map((index, k) => chunkOf(state.node, k, index)) };
  const choice = h("select", { "aria-label": "Colour by" }, ["kind", "size", "object", "commit"].map((name) => h("option", { value: name }, name)));
  choice.value = colour;
  choice.addEventListener("change", () => go(link("data", context.path, { ...address().params, view: "chunks", colour: choice.value, x: state.x, y: state.rank > 1 ? state.y : null })));
  const change = (axis) => (k) => {
    if (axis === "y" && k === state.x) state.x = state.y;
    if (axis === "x" && k === state.y) state.y = state.x;
    state[axis] = k;
    go(link("data", context.path, { ...address().params, view: "chunks", x: state.x, y: state.y }));
  };
  async function load() {
    try {
      const found = await getJSON("chunks", {
        ref: context.snapshot, path: context.path, y: plane.length > 1 ? plane[0] : null, x: plane.length ? plane[plane.length - 1] : null,
        index: chunkState.index.join(","), origins: colour === "commit" ? 1 : null,
      });
      if (context.isCurrent()) draw(state, found, colour, place, legend, tip, context);
    } catch (error) {
      replace(place, problem(error));
    }
  }
  const dims = sliders(chunkState, plane, load, grid);
  replace(
    body,
    h("div", { class: "controls" },
      state.rank > 1 && [axisChoice("Rows", state, state.y, change("y")), axisChoice("Columns", state, state.x, change("x"))],
      h("label", { class: "field" }, "Colour by", choice)),
    dims.element, legend, place, tip,
  );
  context.onleave(() => dims.stop());
  await load();
}

function draw(state, found, colour, place, legend, tip, context) {
  const { cells } = found;
  const counts = found.axes.map((axis, k) => Math.ceil(found.grid[axis] / found.bins[k]));
  let [rows, columns] = counts.length === 2 ? counts : [1, counts[0] ?? 1];
  const width = Math.max(260, place.clientWidth || 800);
  // One row or column of chunks is folded into several rows.
  const single = rows === 1 || columns === 1;
  const count = rows * columns;
  const fold = single && count > 1 ? Math.min(count, Math.max(Math.floor(width / 28), Math.ceil(Math.sqrt(count * 3)))) : 0;
  const line = columns === 1 ? cells.row : cells.column;
  const axis = counts.length === 2 && columns === 1 ? 0 : counts.length - 1;
  const at = (k) => (fold ? [Math.floor(line[k] / fold), line[k] % fold] : [cells.row[k], cells.column[k]]);
  if (fold) [rows, columns] = [Math.ceil(count / fold), fold];
  const size = Math.max(2, Math.min(26, Math.floor((width - 2) / columns), Math.floor(520 / rows) || 2));
  const canvas = h("canvas", { role: "img", tabindex: "0", "aria-label": `Chunk map of ${found.path}: ${plural(found.chunks, "chunk")} on this plane` });
  const ratio = window.devicePixelRatio || 1;
  canvas.width = columns * size * ratio;
  canvas.height = rows * size * ratio;
  canvas.style.width = `${columns * size}px`;
  canvas.style.height = `${rows * size}px`;
  const context2d = canvas.getContext("2d");
  context2d.scale(ratio, ratio);
  const gap = size > 6 ? 1 : 0;
  const style = getComputedStyle(document.body);
  context2d.fillStyle = style.getPropertyValue("--missing");
  const total = fold ? count : rows * columns;
  for (let k = 0; k < total && total <= 200000; k++) context2d.fillRect((k % columns) * size, Math.floor(k / columns) * size, size - gap, size - gap);
  const largest = Math.max(1, ...sample(cells.size));
  const known = new Map();
  const paint = {
    kind: (k) => KIND_COLOURS[found.kinds[cells.kind[k]]] || "transparent",
    size: (k) => css(table("Aurora").rows[Math.round((255 * cells.size[k]) / largest)]),
    object: (k) => (cells.object[k] < 0 ? KIND_COLOURS.inline : category(cells.object[k])),
    commit: (k) => (cells.commit[k] < 0 ? style.getPropertyValue("--dim") : category(cells.commit[k])),
  }[colour];
  for (let k = 0; k < cells.row.length; k++) {
    const [row, column] = at(k);
    known.set(row * columns + column, k);
    context2d.fillStyle = paint(k);
    context2d.fillRect(column * size, row * size, size - gap, size - gap);
  }
  let cursor = null;
  const tell = (row, column) => {
    if (row < 0 || column < 0 || row >= rows || column >= columns) return;
    const k = known.get(row * columns + column);
    const folded = row * fold + column;
    if (fold && folded >= count) return;
    const where = fold ? (axis === 0 && counts.length === 2 ? [folded, 0] : [0, folded]) : [row, column];
    const names = counts.length === 2 ? `${found.names[0]} ${where[0] * found.bins[0]}, ${found.names[1]} ${where[1] * found.bins[1]}` : counts.length ? `${found.names[0]} ${where[1] * found.bins[0]}` : "the only chunk";
    if (k === undefined) {
      replace(tip, `Chunk at ${names}: never written. Its values are the fill value.`);
      return;
    }
    const kind = found.kinds[cells.kind[k]];
    const object = cells.object[k] >= 0 ? found.objects[cells.object[k]] : null;
    const commit = found.commits && cells.commit[k] >= 0 ? found.commits[cells.commit[k]] : null;
    replace(tip, `Chunk at ${names}: ${kind}, ${bytes(cells.size[k])}`, object && [", ", h("code", null, `${object}${cells.offset[k] ? ` +${cells.offset[k]}` : ""}`)],
      commit && [", written by ", h("a", { href: link("history", "/", { ...context.params, commit: commit.id }) }, `${shortId(commit.id)} ${commit.message.split("\n")[0]}`)]);
  };
  canvas.addEventListener("pointermove", (event) => tell(Math.floor(event.offsetY / size), Math.floor(event.offsetX / size)));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    cursor = cursor ? [cursor[0] + step[0], cursor[1] + step[1]] : [0, 0];
    cursor = [Math.min(rows - 1, Math.max(0, cursor[0])), Math.min(columns - 1, Math.max(0, cursor[1]))];
    tell(...cursor);
  });
  const axes = counts.length === 2 ? `${found.names[0]} ↓ × ${found.names[1]} →` : found.names[0] || "";
  const several = found.bins.some((bin) => bin > 1) ? ` One square stands for ${found.bins.join("×")} chunks.` : "";
  replace(place, h("p", { class: "dim" }, `${axes}: ${plural(found.chunks, "chunk")} written on this plane of ${found.axes.map((axis) => found.grid[axis]).join(" × ") || 1}.${several}`), canvas);
  replace(legend, legendEntries(found, colour, largest));
}

function sample(values) {
  const step = Math.max(1, Math.floor(values.length / 50000));
  return values.filter((_, k) => k % step === 0);
}

function swatch(colour, text) {
  return h("span", { class: "entry" }, h("i", { class: colour ? "" : "absent", style: colour ? { background: colour } : {} }), text);
}

function legendEntries(found, colour, largest) {
  if (colour === "kind") {
    const used = new Set(found.cells.kind);
    return found.kinds.filter((kind, k) => kind === "absent" || used.has(k)).map((kind) => swatch(KIND_COLOURS[kind], `${kind}: ${MEANINGS[kind]}`));
  }
  if (colour === "size") return [0, 0.5, 1].map((part) => swatch(css(table("Aurora").rows[Math.round(255 * part)]), bytes(Math.round(largest * part))));
  if (colour === "commit") {
    const entries = found.commits.slice(0, 12).map((commit, k) => swatch(category(k), `${shortId(commit.id)} ${commit.message.split("\n")[0].slice(0, 40)}`));
    return found.commits.length > 12 ? [...entries, `and ${found.commits.length - 12} more`] : entries;
  }
  return [h("span", { class: "dim" }, `${plural(found.objects.length, "object")}: chunks of one colour are next to each other in one object, colours repeat.`)];
}
