// A map of a slice: values as colours on a canvas, with axes, coastlines, zoom, pan and values under the pointer.

import { table } from "./colours.js";
import { h, isoTime, number } from "./dom.js";
import { Axis } from "./scale.js";

let coastlines = null;

async function loadCoastlines() {
  if (!coastlines) {
    coastlines = fetch("static/coastlines.json").then((response) => response.json()).then(({ lines }) =>
      lines.map((line) => {
        const points = new Float32Array(line.length);
        let x = 0;
        let y = 0;
        for (let i = 0; i < line.length; i += 2) {
          x += line[i];
          y += line[i + 1];
          points[i] = x / 10;
          points[i + 1] = y / 10;
        }
        return points;
      }),
    );
  }
  return coastlines;
}

// A block of values with its axes.
export class Block {
  constructor({ header, values }) {
    this.header = header;
    this.values = values;
    [this.rows, this.columns] = header.shape;
    [this.y, this.x] = header.axes.map((facts, k) => new Axis(facts, header.starts[k], header.steps[k]));
  }

  at(row, column) {
    return this.values[row * this.columns + column];
  }
}

const MARGIN = { left: 58, right: 14, top: 10, bottom: 34 };

export class MapPlot {
  // options: label (for screen readers), onview(view) after zoom and pan, onpick(index of y and x), format(value)
  constructor(options) {
    this.options = options;
    this.base = null;
    this.parts = [];
    this.detail = null;
    this.view = null;
    this.range = [0, 1];
    this.colours = "Aurora";
    this.outlines = null;
    this.cursor = null;
    this.showCoast = true;
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": options.label || "Map", class: "plot" });
    this.tip = h("div", { class: "tip", "aria-live": "polite", hidden: true });
    this.element = h(
      "div", { class: "map" }, this.canvas, this.tip,
      h("div", { class: "zoom" },
        h("button", { type: "button", "aria-label": "Zoom in", title: "Zoom in", onclick: () => this.zoom(0.5) }, "+"),
        h("button", { type: "button", "aria-label": "Zoom out", title: "Zoom out", onclick: () => this.zoom(2) }, "−"),
        h("button", { type: "button", "aria-label": "Show all", title: "Show all", onclick: () => this.reset() }, "⤢"),
      ),
    );
    this.listen();
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
    loadCoastlines().then((lines) => {
      this.coast = lines;
      this.draw();
    }).catch(() => {});
  }

  setBase(block, keepView) {
    this.base = block;
    this.parts = [];
    this.detail = null;
    if (!keepView || !this.view) this.view = this.full();
    this.draw();
  }

  // A finer block of a part of the base.
  addPart(block) {
    this.parts.push(block);
    this.draw();
  }

  setDetail(block) {
    this.detail = block;
    this.draw();
  }

  full() {
    const { x, y } = this.base;
    return { x0: x.low, x1: x.high, y0: y.low, y1: y.high };
  }

  isFull() {
    const full = this.full();
    return ["x0", "x1", "y0", "y1"].every((key) => Math.abs(full[key] - this.view[key]) < 1e-9 * (Math.abs(full[key]) + 1));
  }

  get isGeographic() {
    return Boolean(this.base && this.base.x.longitude && this.base.y.latitude);
  }

  // Numbers grow upwards, as on a map. Indices, times and texts grow downwards, as in a table.
  get upwards() {
    return this.base.y.usesCoordinates && this.base.y.facts.kind === "number";
  }

  size() {
    const width = Math.max(200, this.element.clientWidth);
    let height = this.options.height || Math.min(460, Math.max(220, window.innerHeight * 0.55));
    if (this.isGeographic) {
      const full = this.full();
      const inner = (width - MARGIN.left - MARGIN.right) * ((full.y1 - full.y0) / (full.x1 - full.x0));
      height = Math.min(Math.max(inner, 120) + MARGIN.top + MARGIN.bottom, Math.max(300, window.innerHeight * 0.72));
    }
    return { width, height: Math.round(height) };
  }

  plotArea() {
    const { width, height } = this.size();
    let w = width - MARGIN.left - MARGIN.right;
    const hgt = height - MARGIN.top - MARGIN.bottom;
    if (this.isGeographic) {
      const full = this.full();
      w = Math.min(w, hgt * ((full.x1 - full.x0) / (full.y1 - full.y0)));
    }
    return { left: MARGIN.left, top: MARGIN.top, width: w, height: hgt };
  }

  toPixel(x, y) {
    const area = this.plotArea();
    const v = this.view;
    const px = area.left + ((x - v.x0) / (v.x1 - v.x0)) * area.width;
    const part = (y - v.y0) / (v.y1 - v.y0);
    return [px, area.top + (this.upwards ? 1 - part : part) * area.height];
  }

  toWorld(px, py) {
    const area = this.plotArea();
    const v = this.view;
    const part = (py - area.top) / area.height;
    return [v.x0 + ((px - area.left) / area.width) * (v.x1 - v.x0), v.y0 + (this.upwards ? 1 - part : part) * (v.y1 - v.y0)];
  }

  draw() {
    if (!this.base || !this.element.isConnected) return;
    const { width, height } = this.size();
    const ratio = window.devicePixelRatio || 1;
    const canvas = this.canvas;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(this.element);
    this.paint(context, ratio, style);
    const area = this.plotArea();
    context.save();
    context.beginPath();
    context.rect(area.left, area.top, area.width, area.height);
    context.clip();
    if (this.isGeographic && this.showCoast && this.coast) this.drawCoast(context);
    if (this.outlines) this.drawOutlines(context);
    if (this.cursor) this.drawCursor(context);
    context.restore();
    this.drawAxes(context, style);
  }

  paint(context, ratio, style) {
    const area = this.plotArea();
    const w = Math.max(1, Math.round(area.width * ratio));
    const hgt = Math.max(1, Math.round(area.height * ratio));
    context.fillStyle = style.getPropertyValue("--missing");
    context.fillRect(area.left, area.top, area.width, area.height);
    const image = new ImageData(w, hgt);
    const pixels = new Uint32Array(image.data.buffer);
    for (const block of [this.base, ...this.parts, this.detail]) {
      if (!block || !block.values.length) continue;
      const columns = new Int32Array(w);
      for (let i = 0; i < w; i++) columns[i] = block.x.find(this.view.x0 + ((i + 0.5) / w) * (this.view.x1 - this.view.x0));
      const { packed } = table(this.colours);
      const [low, high] = this.range;
      const factor = high > low ? 255 / (high - low) : 0;
      for (let j = 0; j < hgt; j++) {
        const part = (j + 0.5) / hgt;
        const row = block.y.find(this.view.y0 + (this.upwards ? 1 - part : part) * (this.view.y1 - this.view.y0));
        if (row < 0) continue;
        const offset = row * block.columns;
        const out = j * w;
        for (let i = 0; i < w; i++) {
          if (columns[i] < 0) continue;
          const value = block.values[offset + columns[i]];
          if (value !== value) {
            pixels[out + i] = 0;
            continue;
          }
          const level = factor ? (value - low) * factor : value >= high ? 255 : 0;
          pixels[out + i] = packed[level <= 0 ? 0 : level >= 255 ? 255 : level | 0];
        }
      }
    }
    const buffer = document.createElement("canvas");
    buffer.width = w;
    buffer.height = hgt;
    buffer.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(buffer, area.left, area.top, area.width, area.height);
  }

  drawCoast(context) {
    context.lineJoin = "round";
    const path = new Path2D();
    for (const shift of [-360, 0, 360]) {
      if (this.view.x1 < -180 + shift || this.view.x0 > 180 + shift) continue;
      for (const line of this.coast) {
        for (let i = 0; i < line.length; i += 2) {
          const [px, py] = this.toPixel(line[i] + shift, line[i + 1]);
          if (i === 0) path.moveTo(px, py);
          else path.lineTo(px, py);
        }
      }
    }
    context.strokeStyle = "rgba(255,255,255,.55)";
    context.lineWidth = 2.2;
    context.stroke(path);
    context.strokeStyle = "rgba(10,20,30,.85)";
    context.lineWidth = 0.9;
    context.stroke(path);
  }

  // Outlines of chunks: { rows, columns, chunk: [y, x], bounds: [y, x] } in the chunk grid. Bounds are those of chunks of different lengths.
  drawOutlines(context) {
    const { rows, columns, chunk, bounds } = this.outlines;
    const edge = (axis, number) => (bounds?.[axis]?.[number] ?? number * chunk[axis]) - 0.5;
    const { x, y } = this.base;
    context.strokeStyle = "rgba(20,20,20,.75)";
    context.setLineDash([4, 3]);
    context.lineWidth = 1.2;
    for (let k = 0; k < Math.min(rows.length, 4000); k++) {
      const [left, top] = this.toPixel(x.toValue(edge(1, columns[k])), y.toValue(edge(0, rows[k])));
      const [right, bottom] = this.toPixel(x.toValue(edge(1, columns[k] + 1)), y.toValue(edge(0, rows[k] + 1)));
      context.strokeRect(Math.min(left, right), Math.min(top, bottom), Math.abs(right - left), Math.abs(bottom - top));
    }
    context.setLineDash([]);
  }

  drawCursor(context) {
    const { x, y } = this.base;
    const [px, py] = this.toPixel(x.values[this.cursor.column], y.values[this.cursor.row]);
    context.lineWidth = 3;
    context.strokeStyle = "rgba(255,255,255,.9)";
    context.strokeRect(px - 6, py - 6, 12, 12);
    context.lineWidth = 1.5;
    context.strokeStyle = "#111";
    context.strokeRect(px - 6, py - 6, 12, 12);
  }

  drawAxes(context, style) {
    const area = this.plotArea();
    const { x, y } = this.base;
    context.strokeStyle = style.getPropertyValue("--axis");
    context.fillStyle = style.getPropertyValue("--dim");
    context.lineWidth = 1;
    context.strokeRect(area.left + 0.5, area.top + 0.5, area.width - 1, area.height - 1);
    context.font = `11px ${style.fontFamily}`;
    context.textAlign = "center";
    context.textBaseline = "top";
    const v = this.view;
    let last = -1e9;
    for (const [value, text] of x.ticks(v.x0, v.x1, Math.max(2, area.width / 80))) {
      const [px] = this.toPixel(value, v.y0);
      const half = context.measureText(text).width / 2;
      if (px < area.left - 0.5 || px > area.left + area.width + 0.5 || px - half < last + 8) continue;
      last = px + half;
      context.beginPath();
      context.moveTo(px, area.top + area.height);
      context.lineTo(px, area.top + area.height + 4);
      context.stroke();
      context.fillText(text, Math.min(Math.max(px, half + 2), this.size().width - half - 2), area.top + area.height + 6);
    }
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const [value, text] of y.ticks(v.y0, v.y1, Math.max(2, area.height / 40))) {
      const [, py] = this.toPixel(v.x0, value);
      if (py < area.top - 0.5 || py > area.top + area.height + 0.5) continue;
      context.beginPath();
      context.moveTo(area.left - 4, py);
      context.lineTo(area.left, py);
      context.stroke();
      context.fillText(text.length > 9 ? `${text.slice(0, 8)}…` : text, area.left - 7, py);
    }
    if (!this.isGeographic) {
      context.textAlign = "center";
      context.textBaseline = "bottom";
      context.fillText(x.title(), area.left + area.width / 2, this.size().height - 1);
      context.save();
      context.translate(10, area.top + area.height / 2);
      context.rotate(-Math.PI / 2);
      context.textBaseline = "middle";
      context.fillText(y.title(), 0, 0);
      context.restore();
    }
  }

  // -- interaction --

  listen() {
    const { canvas } = this;
    let drag = null;
    const pointers = new Map();
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
      drag = { x: event.offsetX, y: event.offsetY, view: { ...this.view }, moved: false };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (pointers.size === 2 && pointers.has(event.pointerId)) {
        const before = distance(pointers);
        pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
        const after = distance(pointers);
        if (after > 0) this.zoom(before / after, event.offsetX, event.offsetY);
        return;
      }
      if (drag && event.buttons) {
        const area = this.plotArea();
        const dx = ((event.offsetX - drag.x) / area.width) * (drag.view.x1 - drag.view.x0);
        const dy = ((event.offsetY - drag.y) / area.height) * (drag.view.y1 - drag.view.y0) * (this.upwards ? -1 : 1);
        if (Math.hypot(event.offsetX - drag.x, event.offsetY - drag.y) > 3) drag.moved = true;
        if (drag.moved) this.setView({ x0: drag.view.x0 - dx, x1: drag.view.x1 - dx, y0: drag.view.y0 - dy, y1: drag.view.y1 - dy });
        return;
      }
      this.showTip(event.offsetX, event.offsetY);
    });
    const end = (event) => {
      pointers.delete(event.pointerId);
      if (drag && !drag.moved && event.type === "pointerup") this.pick(event.offsetX, event.offsetY);
      drag = null;
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("dblclick", () => this.reset());
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => {
      this.cursor = null;
      this.tip.hidden = true;
      this.draw();
    });
  }

  key(event) {
    if (!this.base) return;
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0" || event.key === "Escape") this.reset();
    else if (step && event.shiftKey) {
      const v = this.view;
      const dx = step[0] * 0.2 * (v.x1 - v.x0);
      const dy = step[1] * 0.2 * (v.y1 - v.y0) * (this.upwards ? 1 : -1);
      this.setView({ x0: v.x0 + dx, x1: v.x1 + dx, y0: v.y0 + dy, y1: v.y1 + dy });
    } else if (step) this.moveCursor(step);
    else if (event.key === "Enter" && this.cursor) this.pickCell(this.cursor.row, this.cursor.column);
    else return;
    event.preventDefault();
  }

  moveCursor([dx, dy]) {
    const { rows, columns, x, y } = this.base;
    if (!rows || !columns) return;
    if (!this.cursor) this.cursor = { row: rows >> 1, column: columns >> 1 };
    const upIsBack = this.upwards ? y.descends : !y.descends;
    this.cursor.column = Math.min(columns - 1, Math.max(0, this.cursor.column + (x.descends ? -dx : dx)));
    this.cursor.row = Math.min(rows - 1, Math.max(0, this.cursor.row + (upIsBack ? -dy : dy)));
    this.draw();
    const [px, py] = this.toPixel(x.values[this.cursor.column], y.values[this.cursor.row]);
    this.tipAt(this.base, this.cursor.row, this.cursor.column, px, py);
  }

  cellAt(px, py) {
    if (!this.base) return null;
    const area = this.plotArea();
    if (px < area.left || px > area.left + area.width || py < area.top || py > area.top + area.height) return null;
    const [x, y] = this.toWorld(px, py);
    for (const block of [this.detail, ...this.parts, this.base]) {
      if (!block) continue;
      const row = block.y.find(y);
      const column = block.x.find(x);
      if (row >= 0 && column >= 0) return { block, row, column };
    }
    return null;
  }

  showTip(px, py) {
    const cell = this.cellAt(px, py);
    if (cell) this.tipAt(cell.block, cell.row, cell.column, px, py);
    else this.tip.hidden = true;
  }

  tipAt(block, row, column, px, py) {
    const value = block.at(row, column);
    const text = block.header.kind === "time" ? isoTime(value) : number(value, 6);
    const units = this.options.units && text !== "missing" ? ` ${this.options.units}` : "";
    this.tip.replaceChildren(
      h("strong", null, text + units),
      h("span", null, `${block.y.facts.name} ${block.y.label(row)}`),
      h("span", null, `${block.x.facts.name} ${block.x.label(column)}`),
    );
    this.tip.hidden = false;
    const right = px > this.element.clientWidth - 170;
    this.tip.style.left = right ? "auto" : `${px + 14}px`;
    this.tip.style.right = right ? `${this.element.clientWidth - px + 14}px` : "auto";
    this.tip.style.top = `${Math.max(4, py - 10)}px`;
  }

  pick(px, py) {
    const cell = this.cellAt(px, py);
    if (cell) this.pickCell(cell.row, cell.column, cell.block);
  }

  pickCell(row, column, block = this.base) {
    if (this.options.onpick) this.options.onpick(block.y.indices[row], block.x.indices[column]);
  }

  zoom(factor, px, py) {
    if (!this.base) return;
    const area = this.plotArea();
    const [x, y] = this.toWorld(px ?? area.left + area.width / 2, py ?? area.top + area.height / 2);
    const v = this.view;
    this.setView({
      x0: x + (v.x0 - x) * factor, x1: x + (v.x1 - x) * factor,
      y0: y + (v.y0 - y) * factor, y1: y + (v.y1 - y) * factor,
    });
  }

  reset() {
    if (!this.base) return;
    this.detail = null;
    this.setView(this.full());
  }

  setView(wanted, quiet) {
    const full = this.full();
    const view = { ...wanted };
    for (const [low, high] of [["x0", "x1"], ["y0", "y1"]]) {
      const most = full[high] - full[low];
      const size = Math.min(most, Math.max(view[high] - view[low], most * 1e-7));
      const middle = (view[low] + view[high]) / 2;
      view[low] = Math.min(Math.max(middle - size / 2, full[low]), full[high] - size);
      view[high] = view[low] + size;
    }
    this.view = view;
    this.draw();
    if (!quiet && this.options.onview) this.options.onview(view);
  }

  // The window of the array that the view shows, with a margin: [[y first, y end], [x first, x end]].
  window() {
    const { x, y } = this.base;
    return [[y, this.view.y0, this.view.y1], [x, this.view.x0, this.view.x1]].map(([axis, low, high]) => {
      const ends = [axis.toIndex(low), axis.toIndex(high)].sort((a, b) => a - b);
      const margin = Math.max(1, (ends[1] - ends[0]) * 0.05);
      return [Math.max(0, Math.floor(ends[0] - margin)), Math.min(axis.facts.length, Math.ceil(ends[1] + margin) + 1)];
    });
  }

  pixels() {
    const area = this.plotArea();
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    return { width: Math.min(2048, Math.ceil(area.width * ratio)), height: Math.min(2048, Math.ceil(area.height * ratio)) };
  }

  destroy() {
    this.observer.disconnect();
  }
}

function distance(pointers) {
  const [[ax, ay], [bx, by]] = [...pointers.values()];
  return Math.hypot(ax - bx, ay - by);
}
