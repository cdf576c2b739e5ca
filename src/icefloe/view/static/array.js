// One array: its values as a map, as lines and as a table, its chunks, a comparison, and its metadata.

import { getJSON, getSlice } from "./api.js";
import { address, go, link } from "./app.js";
import { showChunks } from "./chunks.js";
import { DIVERGING, NAMES, category, css, table as colourTable } from "./colours.js";
import { attributeTable, crumbs } from "./data.js";
import { bytes, h, isoTime, number, plural, problem, replace, shortId, spinner, tabList } from "./dom.js";
import { LinePlot } from "./lines.js";
import { Block, MapPlot } from "./map.js";
import { isLatitude, isLongitude, ticks } from "./scale.js";

const NUMERIC = /^(bool|u?int\d+|float\d+|complex\d+|numpy\.(datetime|timedelta)64|datetime64|timedelta64)/;
const REFINE_PARTS = 100;
const TABLE_ROWS = 50;
const TABLE_COLUMNS = 16;

export class ArrayState {
  constructor(context, node) {
    this.context = context;
    this.node = node;
    this.rank = node.shape.length;
    const { params } = context;
    const at = (params.i || "").split(",").map(Number);
    this.index = node.shape.map((length, k) => Math.min(Math.max(0, at[k] || 0), Math.max(length - 1, 0)));
    this.names = node.shape.map((_, k) => (node.dimension_names && node.dimension_names[k]) || `dimension ${k}`);
    const [y, x] = this.defaultAxes();
    const wanted = (name, other) => (params[name] !== undefined && Number(params[name]) < this.rank ? Number(params[name]) : other);
    this.x = wanted("x", x);
    this.y = wanted("y", y);
    if (this.x === this.y && this.rank > 1) this.y = (this.x + 1) % this.rank;
    const first = this.node.shape.findIndex((length, k) => length > 1 && k !== this.x && k !== this.y);
    this.line = wanted("l", first >= 0 ? first : this.rank ? x : 0);
    this.colours = params.colours || "Aurora";
  }

  defaultAxes() {
    const facts = this.names.map((name, k) => ({ name, units: "", k }));
    const latitude = facts.findIndex((each) => isLatitude(each));
    const longitude = facts.findIndex((each) => isLongitude(each));
    if (latitude >= 0 && longitude >= 0) return [latitude, longitude];
    const long = this.node.shape.map((length, k) => [length, k]).filter(([length]) => length > 1).map(([, k]) => k);
    if (long.length >= 2) return long.slice(-2);
    return [Math.max(0, this.rank - 2), this.rank - 1];
  }

  get isNumeric() {
    return NUMERIC.test(this.node.data_type);
  }

  get isEmpty() {
    return this.node.shape.some((length) => length === 0);
  }

  // The units of the values, unless they are times.
  get units() {
    const { units } = this.node.attributes;
    return typeof units === "string" && !/ since /.test(units) ? units : "";
  }

  remember(view) {
    const { params, path } = address();
    go(link("data", path, {
      ...params, view, x: this.rank > 1 ? this.x : null, y: this.rank > 1 ? this.y : null, l: view === "lines" ? this.line : params.l,
      i: this.index.some(Boolean) ? this.index.join(",") : null, colours: this.colours === "Aurora" ? null : this.colours,
    }), true);
  }
}

export async function showArray(context, panel, node) {
  const state = new ArrayState(context, node);
  const { params } = context;
  const body = h("div", { class: "view" });
  const views = [];
  if (state.isNumeric && state.rank > 1) views.push(["map", "Map"]);
  if (state.isNumeric && state.rank > 0) views.push(["lines", "Lines"]);
  views.push(["table", "Table"]);
  views.push(["chunks", "Chunks"], ["compare", "Compare"], ["about", "About"]);
  const names = views.map(([name]) => name);
  const current = names.includes(params.view) ? params.view : names[0];
  const subtabs = tabList("Views of the array", views, current, (name, focus) => {
    sessionStorage.setItem("focus-tab", focus ? name : "");
    go(link("data", context.path, { ...address().params, view: name }));
  });
  const size = node.storage ? ` · ${bytes(node.storage.bytes)} in ${plural(node.storage.chunks, "chunk")}` : "";
  const long = node.attributes.long_name;
  replace(
    panel, crumbs(node.path, params),
    h("p", { class: "lead" }, typeof long === "string" && long !== node.name ? `${long} · ` : "", h("code", null, node.data_type), " ",
      state.rank ? h("span", null, state.names.map((name, k) => `${name} ${Number(node.shape[k]).toLocaleString("en")}`).join(" × ")) : "scalar", size),
    subtabs, body,
  );
  try {
    if (sessionStorage.getItem("focus-tab") === current) subtabs.querySelector("[aria-selected=true]").focus();
    sessionStorage.removeItem("focus-tab");
  } catch (error) {
    // Storage may be disabled.
  }
  if (state.isEmpty && ["map", "lines", "table"].includes(current)) {
    replace(body, h("p", { class: "empty" }, `This array has no values: its shape is (${node.shape.join(", ")}).`));
    return;
  }
  const show = { map: showMap, lines: showLines, table: showTable, chunks: showChunks, compare: showArrayCompare, about: showAbout }[current];
  try {
    await show(context, state, body);
  } catch (error) {
    if (context.isCurrent() && error.name !== "AbortError") replace(body, problem(error));
  }
}

// -- controls --

// A choice of two axes and sliders for the other dimensions.
export function sliders(state, axes, onchange, lengths = state.node.shape) {
  const list = h("div", { class: "sliders" });
  const labels = new Map();
  let timer = null;
  for (let k = 0; k < state.rank; k++) {
    if (axes.includes(k) || lengths[k] <= 1) continue;
    const output = h("output", { for: `slider-${k}` }, String(state.index[k]));
    labels.set(k, output);
    const input = h("input", {
      type: "range", id: `slider-${k}`, min: "0", max: String(lengths[k] - 1), step: "1", value: String(Math.min(state.index[k], lengths[k] - 1)),
      "aria-label": state.names[k],
    });
    input.addEventListener("input", () => {
      state.index[k] = Number(input.value);
      output.textContent = input.value;
      onchange();
    });
    const play = h("button", { type: "button", class: "quiet play", "aria-label": `Play ${state.names[k]}`, "aria-pressed": "false" }, "▶");
    play.addEventListener("click", () => {
      const running = play.getAttribute("aria-pressed") === "true";
      clearInterval(timer);
      for (const other of list.querySelectorAll(".play")) {
        other.setAttribute("aria-pressed", "false");
        other.textContent = "▶";
      }
      if (running) return;
      play.setAttribute("aria-pressed", "true");
      play.textContent = "❚❚";
      timer = setInterval(() => {
        if (!play.isConnected) {
          clearInterval(timer);
          return;
        }
        input.value = String((Number(input.value) + 1) % lengths[k]);
        input.dispatchEvent(new Event("input"));
      }, 350);
    });
    list.append(h("div", { class: "slider" }, h("label", { for: `slider-${k}` }, state.names[k]), input, output, play));
  }
  // More than a few dimensions are folded away.
  const many = list.children.length > 6;
  const element = many ? h("details", { class: "many" }, h("summary", null, `${list.children.length} other dimensions`), list) : list;
  return {
    element,
    label(others) {
      for (const { dimension, index, label } of others) {
        if (labels.has(dimension)) labels.get(dimension).textContent = label === String(index) ? label : `${label}  [${index}]`;
      }
    },
    stop: () => clearInterval(timer),
  };
}

export function axisChoice(label, state, value, choose) {
  const select = h("select", { "aria-label": label }, state.names.map((name, k) => h("option", { value: String(k) }, name)));
  select.value = String(value);
  select.addEventListener("change", () => choose(Number(select.value)));
  return h("label", { class: "field" }, label, select);
}

function colourChoice(state, change) {
  const select = h("select", { "aria-label": "Colours" }, NAMES.map((name) => h("option", { value: name }, name)));
  select.value = state.colours;
  select.addEventListener("change", () => change(select.value));
  return h("label", { class: "field" }, "Colours", select);
}

export class ColourBar {
  constructor(title) {
    this.canvas = h("canvas", { width: "256", height: "1", "aria-hidden": "true" });
    this.marks = h("div", { class: "marks" });
    this.title = h("div", { class: "title" }, title);
    this.element = h("div", { class: "colourbar", role: "img", "aria-label": "Colour scale" }, this.canvas, this.marks, this.title);
  }

  set(name, [low, high], isTime) {
    const context = this.canvas.getContext("2d");
    colourTable(name).rows.forEach((row, i) => {
      context.fillStyle = css(row);
      context.fillRect(i, 0, 1, 1);
    });
    const text = (value) => (isTime ? isoTime(value) : number(value, 5));
    this.element.setAttribute("aria-label", `Colour scale from ${text(low)} to ${text(high)}`);
    const at = isTime ? [low, high] : ticks(low, high, 5).filter((value) => value >= low && value <= high);
    replace(this.marks, at.map((value) => h("span", { style: { left: `${high > low ? (100 * (value - low)) / (high - low) : 50}%` } }, text(value))));
  }
}

// -- map --

// Loads a base block, and finer blocks for the window that a map shows.
export class SliceLoader {
  constructor(state, ref, plot) {
    this.state = state;
    this.ref = ref;
    this.plot = plot;
    this.control = null;
  }

  params(more) {
    const { state } = this;
    return { ref: this.ref, path: state.node.path, y: state.y, x: state.x, index: state.index.join(","), overviews: 1, ...more };
  }

  begin() {
    if (this.control) this.control.abort();
    this.control = new AbortController();
    return this.control.signal;
  }

  async base(keepView) {
    const signal = this.begin();
    const size = this.plot.base ? this.plot.pixels() : { width: Math.max(200, this.plot.element.clientWidth || 800), height: 600 };
    const slice = await getSlice(this.params(size), signal);
    const block = new Block(slice);
    this.plot.setBase(block, keepView);
    if (slice.header.reduced) this.refine(slice.header, signal);
    else if (keepView && !this.plot.isFull()) this.detail();
    return block;
  }

  // Reads a slice whose chunks are too many for one answer, in tiles of as many whole chunks as an answer may have.
  async refine(header, signal) {
    const [chunkY, chunkX] = header.chunk_shape;
    const [[top, bottom], [left, right]] = header.window;
    const [stepY, stepX] = header.wanted_steps;
    const most = Math.max(1, Math.floor((header.budget_bytes * header.chunks_read) / header.decoded_bytes));
    const across = Math.min(Math.ceil((right - left) / chunkX), most);
    const tile = [Math.max(1, Math.floor(most / across)) * chunkY, across * chunkX];
    const parts = Math.ceil((bottom - top) / tile[0]) * Math.ceil((right - left) / tile[1]);
    if (parts > REFINE_PARTS) return;
    for (let y = top; y < bottom; y += tile[0]) {
      for (let x = left; x < right; x += tile[1]) {
        const [endY, endX] = [Math.min(y + tile[0], bottom), Math.min(x + tile[1], right)];
        const size = { width: Math.max(1, Math.ceil((endX - x) / stepX)), height: Math.max(1, Math.ceil((endY - y) / stepY)) };
        const slice = await getSlice(this.params({ window: `${y}:${endY},${x}:${endX}`, ...size }), signal).catch(() => null);
        if (!slice || signal.aborted) return;
        if (this.onpart) this.onpart(slice.header.statistics);
        this.plot.addPart(new Block(slice));
      }
    }
  }

  detail() {
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      const { plot } = this;
      if (plot.isFull()) return;
      const [y, x] = plot.window();
      const steps = plot.base.header.steps;
      if (Math.max(...steps) <= 1) return;
      try {
        const slice = await getSlice(this.params({ ...plot.pixels(), window: `${y[0]}:${y[1]},${x[0]}:${x[1]}` }), this.begin());
        plot.setDetail(new Block(slice));
      } catch (error) {
        if (error.name !== "AbortError") throw error;
      }
    }, 120);
  }
}

export function valueRange(statistics, colours) {
  let { low, high } = statistics;
  if (low === null) return [0, 1];
  if (!(high > low)) [low, high] = [statistics.min, statistics.max];
  if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
  if (colours === DIVERGING && low < 0 && high > 0) {
    const most = Math.max(-low, high);
    return [-most, most];
  }
  return [low, high];
}

async function showMap(context, state, body) {
  const label = () => `Map of ${state.node.path}: ${state.names[state.y]} and ${state.names[state.x]}. Arrow keys read values, plus and minus zoom.`;
  const plot = new MapPlot({
    label: label(), units: state.units, onview: () => loader.detail(),
    onpick: (y, x) => {
      state.index[state.y] = y;
      state.index[state.x] = x;
      state.remember("map");
      series.show();
    },
  });
  const loader = new SliceLoader(state, context.snapshot, plot);
  const bar = new ColourBar(typeof state.node.attributes.long_name === "string" ? `${state.node.attributes.long_name}${state.units ? ` (${state.units})` : ""}` : `${state.node.name}${state.units ? ` (${state.units})` : ""}`);
  const low = h("input", { type: "number", step: "any", "aria-label": "Lowest colour" });
  const high = h("input", { type: "number", step: "any", "aria-label": "Highest colour" });
  const status = h("p", { class: "status dim", role: "status" });
  const series = new PointSeries(context, state);
  let isTime = false;
  let fitted = false;

  function paint() {
    plot.colours = state.colours;
    bar.set(state.colours, plot.range, isTime);
    low.value = Number(plot.range[0].toPrecision(6));
    high.value = Number(plot.range[1].toPrecision(6));
    plot.draw();
  }

  async function load(keepView) {
    const started = performance.now();
    try {
      const block = await loader.base(keepView);
      const { header } = block;
      isTime = header.kind === "time";
      if (!fitted) plot.range = valueRange(header.statistics, state.colours);
      fitted = true;
      paint();
      dims.label(header.others);
      const every = header.overview ? ` · overview ${header.overview.level} (${header.overview.method === "source" ? "of the file, a value for" : `${header.overview.method} of`} ${header.steps.join("×")} values)` : header.steps.some((step) => step > 1) ? ` · every ${header.steps.join("×")}th value` : "";
      const { statistics } = header;
      const range = statistics.min === null ? "all values are missing" : `${number(statistics.min)} to ${number(statistics.max)}`;
      replace(status, `${range}${statistics.missing ? ` · ${plural(statistics.missing, "missing value")}` : ""}${every} · ${plural(header.chunks_read, "chunk")} read · ${Math.round(performance.now() - started)} ms`);
      state.remember("map");
    } catch (error) {
      if (error.name !== "AbortError") replace(status, problem(error));
    }
  }

  // The first values of a reduced slice are few. Its colours follow the values that arrive later.
  loader.onpart = (statistics) => {
    const [one, two] = valueRange(statistics, state.colours);
    if (chosen || statistics.min === null || (one >= plot.range[0] && two <= plot.range[1])) return;
    plot.range = [Math.min(one, plot.range[0]), Math.max(two, plot.range[1])];
    paint();
  };
  let chosen = false;
  const typed = () => {
    chosen = true;
    plot.range = [Number(low.value), Number(high.value)];
    bar.set(state.colours, plot.range, isTime);
    plot.draw();
  };
  low.addEventListener("change", typed);
  high.addEventListener("change", typed);
  const fit = h("button", { type: "button", onclick: () => {
    plot.range = valueRange((plot.detail || plot.base).header.statistics, state.colours);
    paint();
  } }, "Fit");
  const coast = h("input", { type: "checkbox", checked: true, onchange: (event) => {
    plot.showCoast = event.target.checked;
    plot.draw();
  } });
  const again = () => {
    fitted = false;
    const { params } = address();
    go(link("data", context.path, { ...params, x: state.x, y: state.y, i: state.index.join(","), view: "map" }));
  };
  const dims = sliders(state, [state.y, state.x], () => load(true));
  replace(
    body,
    h("div", { class: "controls" },
      axisChoice("Rows", state, state.y, (k) => {
        if (k === state.x) state.x = state.y;
        state.y = k;
        again();
      }),
      axisChoice("Columns", state, state.x, (k) => {
        if (k === state.y) state.y = state.x;
        state.x = k;
        again();
      }),
      colourChoice(state, (name) => {
        state.colours = name;
        plot.range = valueRange(plot.base.header.statistics, name);
        state.remember("map");
        paint();
      }),
      h("span", { class: "field" }, "Range", low, high, fit),
      h("label", { class: "field check" }, coast, "Coastlines"),
    ),
    dims.element, plot.element, bar.element, status, series.element,
  );
  const redraw = () => plot.draw();
  window.addEventListener("theme", redraw);
  context.onleave(() => {
    dims.stop();
    plot.destroy();
    series.destroy();
    window.removeEventListener("theme", redraw);
  });
  await load(false);
  coast.parentElement.hidden = !plot.isGeographic;
}

// The series at a point of a map, along the first other dimension.
class PointSeries {
  constructor(context, state) {
    this.context = context;
    this.state = state;
    this.element = h("div", { class: "point" });
    this.plot = null;
  }

  async show() {
    const { state } = this;
    const axis = state.node.shape.findIndex((length, k) => length > 1 && k !== state.x && k !== state.y);
    if (axis < 0) return;
    if (!this.plot) {
      this.plot = new LinePlot({ label: `Values along ${state.names[axis]}`, units: state.units, height: 240 });
      this.title = h("h2", null);
      replace(this.element, this.title, this.plot.element);
    }
    replace(this.title, "Reading…");
    try {
      const slice = await getSlice({ ref: this.context.snapshot, path: state.node.path, x: axis, index: state.index.join(","), width: 1500 });
      const where = slice.header.others.filter(({ dimension }) => dimension === state.x || dimension === state.y).map(({ dimension, label }) => `${state.names[dimension]} ${label}`);
      replace(this.title, `At ${where.join(", ")}`);
      this.plot.set([{ name: state.node.name, slice }]);
      this.plot.draw();
    } catch (error) {
      replace(this.title, error.message);
    }
  }

  destroy() {
    if (this.plot) this.plot.destroy();
  }
}

// -- lines --

async function showLines(context, state, body) {
  const plot = new LinePlot({ label: `Values of ${state.node.path} along ${state.names[state.line]}`, units: state.units, height: 400 });
  const status = h("p", { class: "status dim", role: "status" });
  let control = null;
  async function load() {
    if (control) control.abort();
    control = new AbortController();
    try {
      const slice = await getSlice({ ref: context.snapshot, path: state.node.path, x: state.line, index: state.index.join(","), width: 2000 }, control.signal);
      plot.set([{ name: state.node.name, slice }]);
      dims.label(slice.header.others);
      const { statistics, steps, chunks_read: chunks } = slice.header;
      const range = statistics.min === null ? "all values are missing" : `${number(statistics.min)} to ${number(statistics.max)}`;
      replace(status, `${plural(statistics.count, "value")} · ${range}${steps[0] > 1 ? ` · every ${steps[0]}th value` : ""} · ${plural(chunks, "chunk")} read`);
      state.remember("lines");
    } catch (error) {
      if (error.name !== "AbortError") replace(status, problem(error));
    }
  }
  const dims = sliders(state, [state.line], load);
  const choice = axisChoice("Along", state, state.line, (k) => go(link("data", context.path, { ...address().params, view: "lines", l: k })));
  replace(body, state.rank > 1 && h("div", { class: "controls" }, choice), dims.element, plot.element, status);
  const redraw = () => plot.draw();
  window.addEventListener("theme", redraw);
  context.onleave(() => {
    dims.stop();
    plot.destroy();
    window.removeEventListener("theme", redraw);
  });
  await load();
}

// -- table --

async function showTable(context, state, body) {
  const place = h("div", { class: "scroll" });
  const status = h("p", { class: "status dim", role: "status" });
  const rows = state.rank > 1 ? state.y : state.rank ? state.x : null;
  let top = 0;
  let left = 0;
  async function load() {
    const params = { ref: context.snapshot, path: state.node.path, index: state.index.join(",") };
    if (state.rank > 1) {
      const bottom = Math.min(top + TABLE_ROWS, state.node.shape[state.y]);
      const right = Math.min(left + TABLE_COLUMNS, state.node.shape[state.x]);
      Object.assign(params, { y: state.y, x: state.x, window: `${top}:${bottom},${left}:${right}` });
    } else if (state.rank === 1) {
      Object.assign(params, { x: 0, window: `${top}:${Math.min(top + TABLE_ROWS * 4, state.node.shape[0])}` });
    }
    try {
      const found = await getJSON("table", params);
      replace(place, drawTable(state, found));
      state.remember("table");
      replace(status, state.rank ? found.window.map(([first, end], k) => `${state.names[found.axes[k].dimension]} ${first} to ${end - 1}`).join(" · ") : "");
    } catch (error) {
      replace(place, problem(error));
    }
  }
  const dims = sliders(state, state.rank > 1 ? [state.y, state.x] : [0], load);
  const step = (down, across) => {
    const size = state.rank > 1 ? TABLE_ROWS : TABLE_ROWS * 4;
    top = Math.max(0, Math.min(top + down * size, Math.floor(Math.max(0, state.node.shape[rows] - 1) / size) * size));
    if (state.rank > 1) left = Math.max(0, Math.min(left + across * TABLE_COLUMNS, Math.floor(Math.max(0, state.node.shape[state.x] - 1) / TABLE_COLUMNS) * TABLE_COLUMNS));
    load();
  };
  const button = (text, label, down, across) => h("button", { type: "button", "aria-label": label, onclick: () => step(down, across) }, text);
  const change = (axis) => (k) => {
    if (axis === "y" && k === state.x) state.x = state.y;
    if (axis === "x" && k === state.y) state.y = state.x;
    state[axis] = k;
    go(link("data", context.path, { ...address().params, view: "table", x: state.x, y: state.y }));
  };
  replace(
    body,
    state.rank > 1 && h("div", { class: "controls" }, axisChoice("Rows", state, state.y, change("y")), axisChoice("Columns", state, state.x, change("x")),
      h("span", { class: "field" }, button("↑", "Earlier rows", -1, 0), button("↓", "Later rows", 1, 0), button("←", "Earlier columns", 0, -1), button("→", "Later columns", 0, 1))),
    state.rank === 1 && state.node.shape[0] > TABLE_ROWS * 4 && h("div", { class: "controls" }, h("span", { class: "field" }, button("↑", "Earlier rows", -1, 0), button("↓", "Later rows", 1, 0))),
    dims.element, status, place,
  );
  context.onleave(() => dims.stop());
  await load();
}

function drawTable(state, found) {
  const text = (value) => (value === null ? h("td", { class: "missing" }, "–") : h("td", null, value));
  const names = (k) => {
    const axis = found.axes[k];
    return axis.labels || axis.values.map((value) => number(value, 6));
  };
  if (!state.rank) return h("table", { class: "values" }, h("tbody", null, h("tr", null, text(found.rows))));
  const labels = names(0);
  if (state.rank === 1) {
    return h("table", { class: "values" }, h("thead", null, h("tr", null, h("th", { scope: "col" }, found.axes[0].name), h("th", { scope: "col" }, state.node.name))),
      h("tbody", null, found.rows.map((value, k) => h("tr", null, h("th", { scope: "row" }, labels[k]), text(value)))));
  }
  return h("table", { class: "values" },
    h("thead", null, h("tr", null, h("th", null, `${found.axes[0].name} \\ ${found.axes[1].name}`), names(1).map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, found.rows.map((row, k) => h("tr", null, h("th", { scope: "row" }, labels[k]), row.map(text)))));
}

// -- comparison --

async function showArrayCompare(context, state, body) {
  const { params, repository } = context;
  const old = params.from || (await defaultOld(context));
  const now = context.ref;
  const refs = [...new Set([...repository.refs.map((ref) => ref.name), old])];
  const select = h("select", { "aria-label": "Compare with" }, refs.map((name) => h("option", { value: name }, /^[0-9A-Z]{20,26}$/.test(name) ? `snapshot ${shortId(name)}` : name)));
  select.value = old;
  select.addEventListener("change", () => go(link("data", context.path, { ...address().params, view: "compare", from: select.value })));
  const place = h("div", null, spinner());
  replace(body, h("div", { class: "controls" }, h("label", { class: "field" }, "From", select), h("span", { class: "field" }, "to ", h("strong", null, now))), place);
  const before = (await getJSON("revision", { ref: old })).snapshot_id;
  const plane = state.rank ? { x: state.x, y: state.rank > 1 ? state.y : null } : {};
  const grid = chunkIndex(state);
  const facts = await getJSON("compare", { from: before, to: context.snapshot, path: context.path, ...plane, index: grid });
  if (!context.isCurrent()) return;
  replace(place, compareFacts(facts));
  if (!facts.from || !state.isNumeric || !state.rank || state.isEmpty || facts.from.shape.length !== state.rank) return;
  if (!NUMERIC.test(facts.from.data_type) || facts.from.shape.some((length) => length === 0)) return;
  if (state.rank === 1) await compareLines(context, state, place, before, old);
  else await compareMaps(context, state, place, before, old, facts);
}

// The chunk of a cell along a dimension.
export function chunkOf(node, k, index) {
  const bounds = node.chunk_bounds?.[k];
  const last = Math.max(0, (node.grid[k] || 1) - 1);
  if (!bounds) return Math.min(Math.floor(index / (node.chunk_shape?.[k] || Math.ceil(node.shape[k] / (last + 1)) || 1)), last);
  const next = bounds.findIndex((bound) => bound > index);
  return next < 1 ? last : next - 1;
}

function chunkIndex(state) {
  return state.index.map((index, k) => chunkOf(state.node, k, index)).join(",");
}

async function defaultOld(context) {
  const commit = await getJSON(`commits/${encodeURIComponent(context.snapshot)}`);
  const other = context.repository.refs.find((ref) => ref.kind === "branch" && ref.name === "main" && ref.snapshot_id !== context.snapshot);
  return other ? other.name : commit.parent_id || context.snapshot;
}

function compareFacts(facts) {
  const list = h("ul", { class: "plain" });
  if (!facts.from) list.append(h("li", null, "The array does not exist in the earlier revision."));
  else {
    if (facts.from.shape.join() !== facts.to.shape.join()) list.append(h("li", null, `Shape: ${facts.from.shape.join("×")} → ${facts.to.shape.join("×")}`));
    if (facts.from.data_type !== facts.to.data_type) list.append(h("li", null, `Type: ${facts.from.data_type} → ${facts.to.data_type}`));
    for (const { name, from, to } of facts.attributes || []) {
      list.append(h("li", null, `Attribute ${name}: ${JSON.stringify(from) ?? "none"} → ${JSON.stringify(to) ?? "none"}`));
    }
    if (facts.chunks) {
      const text = facts.chunks.changed ? plural(facts.chunks.changed, "chunk differs", "chunks differ") : "All chunks are the same";
      list.append(h("li", null, h("strong", { id: "changed-chunks" }, text), `: ${facts.chunks.from} before, ${facts.chunks.to} after.`));
    }
  }
  return list;
}

async function compareLines(context, state, place, before, old) {
  const plot = new LinePlot({ label: "Both revisions", units: state.units, height: 360 });
  place.append(plot.element);
  const params = { path: state.node.path, x: 0, width: 2000 };
  const [one, two] = await Promise.all([getSlice({ ...params, ref: before }), getSlice({ ...params, ref: context.snapshot })]);
  plot.set([{ name: old, slice: one, colour: category(0) }, { name: context.ref, slice: two, colour: category(5) }]);
  context.onleave(() => plot.destroy());
}

async function compareMaps(context, state, place, before, old, facts) {
  const plots = ["before", "after", "difference"].map((name) => new MapPlot({
    label: `Map of ${state.node.path}, ${name}`, units: state.units, height: 250,
    onview: (view) => plots.forEach((each) => each.base && each.setView(view, true)),
  }));
  const titles = [h("h2", null, old), h("h2", null, context.ref), h("h2", null, "Difference")];
  const bars = [new ColourBar(state.units), new ColourBar(state.units), new ColourBar(`${context.ref} − ${old}${state.units ? ` (${state.units})` : ""}`)];
  const status = h("p", { class: "status dim", role: "status" });
  const outline = h("input", { type: "checkbox", checked: true, onchange: () => {
    plots[2].outlines = outline.checked ? outlines : null;
    plots[2].draw();
  } });
  let outlines = null;
  async function load(keepView) {
    const params = { path: state.node.path, y: state.y, x: state.x, width: 900, height: 700 };
    const at = (shape) => state.index.map((index, k) => Math.min(index, shape[k] - 1)).join(",");
    try {
      const [one, two, chunks] = await Promise.all([
        getSlice({ ...params, ref: before, index: at(facts.from.shape) }),
        getSlice({ ...params, ref: context.snapshot, index: at(facts.to.shape) }),
        getJSON("compare", { from: before, to: context.snapshot, path: context.path, y: state.y, x: state.x, index: chunkIndex(state) }),
      ]);
      dims.label(two.header.others);
      const a = valueRange(one.header.statistics);
      const b = valueRange(two.header.statistics);
      const range = [Math.min(a[0], b[0]), Math.max(a[1], b[1])];
      [one, two].forEach((slice, k) => {
        plots[k].range = range;
        plots[k].setBase(new Block(slice), keepView);
        bars[k].set("Aurora", range);
      });
      const same = one.header.shape.join() === two.header.shape.join() && one.header.steps.join() === two.header.steps.join();
      const [rows, columns] = two.header.shape.map((length, k) => Math.min(length, one.header.shape[k]));
      if (!same && one.header.steps.join() !== two.header.steps.join()) {
        replace(status, "The shapes differ too much for a difference.");
        return;
      }
      const values = new Float64Array(two.values.length).fill(NaN);
      let most = 0;
      let differing = 0;
      for (let row = 0; row < rows; row++) {
        for (let column = 0; column < columns; column++) {
          const k = row * two.header.shape[1] + column;
          values[k] = two.values[k] - one.values[row * one.header.shape[1] + column];
          if (values[k] === values[k] && Number.isFinite(values[k])) {
            most = Math.max(most, Math.abs(values[k]));
            if (values[k] !== 0) differing++;
          }
        }
      }
      plots[2].colours = DIVERGING;
      plots[2].range = most ? [-most, most] : [-1, 1];
      outlines = chunks.chunks && chunks.chunks.row ? { rows: chunks.chunks.row, columns: chunks.chunks.column, chunk: two.header.chunk_shape, bounds: [state.node.chunk_bounds?.[state.y], state.node.chunk_bounds?.[state.x]] } : null;
      plots[2].outlines = outline.checked ? outlines : null;
      plots[2].setBase(new Block({ header: two.header, values }), keepView);
      bars[2].set(DIVERGING, plots[2].range);
      replace(status, `${plural(differing, "value differs", "values differ")}, by up to ${number(most)}${state.units ? ` ${state.units}` : ""}. ${plural(outlines ? outlines.rows.length : 0, "changed chunk")} on this plane.`);
    } catch (error) {
      if (error.name !== "AbortError") replace(status, problem(error));
    }
  }
  const smallest = state.node.shape.map((length, k) => Math.min(length, facts.from.shape[k]));
  const dims = sliders(state, [state.y, state.x], () => load(true), smallest);
  place.append(dims.element, h("div", { class: "sides" },
    plots.map((plot, k) => h("figure", { class: k === 2 ? "wide" : "" }, titles[k], plot.element, bars[k].element))),
  h("label", { class: "field check" }, outline, "Outline changed chunks"), status);
  context.onleave(() => {
    dims.stop();
    plots.forEach((plot) => plot.destroy());
  });
  await load(false);
}

// -- about --

async function showAbout(context, state, body) {
  const { node } = state;
  const rows = [
    ["Path", node.path],
    ["Type", node.data_type],
    ["Shape", state.rank ? state.names.map((name, k) => `${name}: ${node.shape[k]}`).join(", ") : "scalar"],
    ["Chunks", node.chunk_shape ? `${node.chunk_shape.join(" × ")} (a grid of ${node.grid.join(" × ") || 1})` : node.chunk_bounds ? `of different lengths (a grid of ${node.grid.join(" × ")})` : "–"],
    ["Codecs", (node.codecs || []).map((codec) => (typeof codec === "object" ? `${codec.name}${codec.configuration ? ` ${JSON.stringify(codec.configuration)}` : ""}` : codec)).join(" → ")],
    ["Fill value", JSON.stringify(node.fill_value)],
    ["Manifests", String(node.manifests)],
  ];
  if (node.storage) {
    const kinds = ["native", "inline", "virtual"].filter((kind) => node.storage[kind].chunks);
    rows.push(["On storage", `${bytes(node.storage.bytes)} in ${node.storage.chunks} of ${node.storage.cells} chunks${kinds.length ? `: ${kinds.map((kind) => `${node.storage[kind].chunks} ${kind}`).join(", ")}` : ""}`]);
  }
  const base = new URL(`zarr/${encodeURIComponent(context.ref)}/`, document.baseURI).href;
  replace(
    body,
    h("table", { class: "facts" }, h("tbody", null, rows.map(([name, value]) => h("tr", null, h("th", { scope: "row" }, name), h("td", null, value))))),
    h("h2", null, "Attributes"), attributeTable(node.attributes),
    h("h2", null, "Open elsewhere"),
    h("p", { class: "dim" }, "This revision is also a Zarr store over HTTP:"),
    h("pre", { class: "code" }, `xarray.open_zarr("${base}")`),
  );
}
