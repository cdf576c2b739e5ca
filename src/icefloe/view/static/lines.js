// Lines over one axis: one or several series on a canvas, with values under the pointer.

import { h, isoTime, number } from "./dom.js";
import { Axis, ticks, timeTicks } from "./scale.js";

const MARGIN = { left: 66, right: 16, top: 14, bottom: 40 };

export class LinePlot {
  // options: label, units
  constructor(options) {
    this.options = options;
    this.series = [];
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": options.label || "Lines", class: "plot" });
    this.tip = h("div", { class: "tip", "aria-live": "polite", hidden: true });
    this.element = h("div", { class: "map" }, this.canvas, this.tip);
    this.canvas.addEventListener("pointermove", (event) => this.show(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.hide());
    this.canvas.addEventListener("blur", () => this.hide());
    this.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.series.length) return;
      event.preventDefault();
      const count = this.series[0].axis.values.length;
      this.at = Math.min(count - 1, Math.max(0, (this.at ?? (count >> 1)) + step));
      this.showAt(this.at);
    });
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  // series: [{ name, colour, slice: { header, values } }]
  set(series) {
    this.series = series.map((each) => ({
      ...each,
      values: each.slice.values,
      axis: new Axis(each.slice.header.axes[0], each.slice.header.starts[0], each.slice.header.steps[0]),
    }));
    this.isTime = series.some((each) => each.slice.header.kind === "time");
    let low = Infinity;
    let high = -Infinity;
    for (const { values } of this.series) {
      for (const value of values) {
        if (Number.isFinite(value)) {
          if (value < low) low = value;
          if (value > high) high = value;
        }
      }
    }
    if (!(high >= low)) [low, high] = [0, 1];
    const margin = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.05 || 1;
    this.range = [low - margin, high + margin];
    this.draw();
  }

  area() {
    const width = Math.max(200, this.element.clientWidth);
    const height = this.options.height || 360;
    return { left: MARGIN.left, top: MARGIN.top, width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom, full: [width, height] };
  }

  px(axis, value) {
    const area = this.area();
    const span = axis.high - axis.low || 1;
    return area.left + ((value - axis.low) / span) * area.width;
  }

  py(value) {
    const area = this.area();
    return area.top + (1 - (value - this.range[0]) / (this.range[1] - this.range[0])) * area.height;
  }

  draw() {
    if (!this.series.length || !this.element.isConnected) return;
    const area = this.area();
    const ratio = window.devicePixelRatio || 1;
    const { canvas } = this;
    canvas.width = Math.round(area.full[0] * ratio);
    canvas.height = Math.round(area.full[1] * ratio);
    canvas.style.width = `${area.full[0]}px`;
    canvas.style.height = `${area.full[1]}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(this.element);
    context.font = `11px ${style.fontFamily}`;
    this.drawAxes(context, area, style);
    context.save();
    context.beginPath();
    context.rect(area.left, area.top, area.width, area.height);
    context.clip();
    for (const each of this.series) {
      context.strokeStyle = each.colour || style.getPropertyValue("--accent");
      context.fillStyle = context.strokeStyle;
      context.lineWidth = 1.6;
      context.lineJoin = "round";
      context.beginPath();
      let pen = false;
      each.values.forEach((value, k) => {
        if (!Number.isFinite(value)) {
          pen = false;
          return;
        }
        const x = this.px(each.axis, each.axis.values[k]);
        if (pen) context.lineTo(x, this.py(value));
        else context.moveTo(x, this.py(value));
        pen = true;
      });
      context.stroke();
      if (each.values.length < 80) {
        each.values.forEach((value, k) => {
          if (!Number.isFinite(value)) return;
          context.beginPath();
          context.arc(this.px(each.axis, each.axis.values[k]), this.py(value), 2.6, 0, 7);
          context.fill();
        });
      }
    }
    context.restore();
  }

  drawAxes(context, area, style) {
    const axis = this.series[0].axis;
    context.strokeStyle = style.getPropertyValue("--line");
    context.fillStyle = style.getPropertyValue("--dim");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const marks = this.isTime
      ? timeTicks(...this.range, area.height / 50).at.map((t) => [t, isoTime(t).slice(0, 10)])
      : ticks(...this.range, area.height / 45).map((value) => [value, number(value, 5)]);
    for (const [value, text] of marks) {
      const y = Math.round(this.py(value)) + 0.5;
      if (y < area.top || y > area.top + area.height) continue;
      context.beginPath();
      context.moveTo(area.left, y);
      context.lineTo(area.left + area.width, y);
      context.stroke();
      context.fillText(text, area.left - 8, y);
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    let last = -1e9;
    for (const [value, text] of axis.ticks(axis.low, axis.high, Math.max(2, area.width / 90))) {
      const x = this.px(axis, value);
      const half = context.measureText(text).width / 2;
      if (x < area.left || x > area.left + area.width || x - half < last + 8) continue;
      last = x + half;
      context.beginPath();
      context.moveTo(x, area.top + area.height);
      context.lineTo(x, area.top + area.height + 4);
      context.stroke();
      context.fillText(text, x, area.top + area.height + 7);
    }
    context.textBaseline = "bottom";
    context.fillText(axis.title(), area.left + area.width / 2, area.full[1] - 1);
    context.strokeRect(area.left + 0.5, area.top + 0.5, area.width, area.height);
  }

  show(x) {
    if (!this.series.length) return;
    const { axis } = this.series[0];
    const area = this.area();
    const value = axis.low + ((x - area.left) / area.width) * (axis.high - axis.low);
    const k = axis.find(value);
    if (k < 0) this.hide();
    else this.showAt(k);
  }

  showAt(k) {
    this.at = k;
    this.draw();
    const { axis } = this.series[0];
    const area = this.area();
    const x = this.px(axis, axis.values[k]);
    const context = this.canvas.getContext("2d");
    context.strokeStyle = getComputedStyle(this.element).getPropertyValue("--dim");
    context.beginPath();
    context.moveTo(x, area.top);
    context.lineTo(x, area.top + area.height);
    context.stroke();
    this.tip.replaceChildren(h("strong", null, axis.label(k)));
    for (const each of this.series) {
      const value = each.values[k];
      const text = value === undefined ? "–" : this.isTime ? isoTime(value) : number(value, 7);
      this.tip.append(h("span", null, `${each.name}: ${text}${this.options.units && Number.isFinite(value) ? ` ${this.options.units}` : ""}`));
    }
    this.tip.hidden = false;
    const right = x > this.element.clientWidth - 190;
    this.tip.style.left = right ? "auto" : `${x + 12}px`;
    this.tip.style.right = right ? `${this.element.clientWidth - x + 12}px` : "auto";
    this.tip.style.top = `${area.top + 6}px`;
  }

  hide() {
    this.tip.hidden = true;
    this.draw();
  }

  destroy() {
    this.observer.disconnect();
  }
}
