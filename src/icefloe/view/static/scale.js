// Axes: ticks at round numbers and dates, and the way from coordinates to pixels and back.

import { number } from "./dom.js";

export function niceStep(span, count) {
  const rough = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  for (const factor of [1, 2, 2.5, 5, 10]) {
    if (factor * power >= rough * 0.999) return factor * power;
  }
  return 10 * power;
}

export function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const step = niceStep(high - low, count);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k === 0 ? 0 : k * step);
  return found;
}

const HOUR = 3600e3;
const DAY = 24 * HOUR;
const STEPS = [1, 5, 15, 60, 300, 900, 1800].map((s) => s * 1000).concat([HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 5 * DAY, 10 * DAY]);

export function timeTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const step = STEPS.find((each) => each >= rough);
  const found = [];
  if (step) {
    for (let t = Math.ceil(low / step) * step; t <= high; t += step) found.push(t);
    return { at: found, format: (t) => formatTime(t, step) };
  }
  const months = [1, 3, 6, 12, 24, 60, 120, 240, 600, 1200].find((m) => m * 30.4 * DAY >= rough) || 2400;
  const first = new Date(low);
  let month = Math.ceil((first.getUTCFullYear() * 12 + first.getUTCMonth()) / months) * months;
  for (; found.length < 50; month += months) {
    const time = Date.UTC(Math.floor(month / 12), month % 12, 1);
    if (time > high) break;
    if (time >= low) found.push(time);
  }
  return { at: found, format: (t) => new Date(t).toISOString().slice(0, months >= 12 ? 4 : 7) };
}

function formatTime(time, step) {
  const text = new Date(time).toISOString();
  if (step >= DAY) return text.slice(0, 10);
  const clock = text.slice(11, step < 60e3 ? 19 : 16);
  return clock.startsWith("00:00") ? text.slice(5, 10) : clock;
}

export function isLatitude(axis) {
  return /^degrees?_?(north|N)$/i.test(axis.units || "") || axis.standard_name === "latitude" || /^(lat|latitude)$/i.test(axis.name);
}

export function isLongitude(axis) {
  return /^degrees?_?(east|E)$/i.test(axis.units || "") || axis.standard_name === "longitude" || /^(lon|long|longitude)$/i.test(axis.name);
}

function degrees(value, positive, negative) {
  const text = number(Math.abs(value), 5);
  return value === 0 ? "0°" : `${text}°${value > 0 ? positive : negative}`;
}

// Positions along an axis: coordinates where they are strictly monotonic, otherwise indices.
export class Axis {
  constructor(facts, start, step) {
    this.facts = facts;
    this.start = start;
    this.step = step;
    const count = facts.values.length;
    this.indices = Float64Array.from({ length: count }, (_, k) => start + k * step);
    const values = Float64Array.from(facts.values);
    let rising = true;
    let falling = true;
    for (let k = 1; k < count; k++) {
      if (!(values[k] > values[k - 1])) rising = false;
      if (!(values[k] < values[k - 1])) falling = false;
    }
    this.usesCoordinates = (facts.kind === "number" || facts.kind === "time") && (rising || falling);
    this.values = this.usesCoordinates ? values : this.indices;
    this.descends = this.usesCoordinates && falling && count > 1;
    this.latitude = this.usesCoordinates && isLatitude(facts);
    this.longitude = this.usesCoordinates && isLongitude(facts);
    this.edges = edgesOf(this.values, this.latitude);
    // A sample of many indices does not reach beyond the array.
    if (!this.usesCoordinates && count) {
      this.edges[0] = Math.max(this.edges[0], -0.5);
      this.edges[count] = Math.min(this.edges[count], facts.length - 0.5);
    }
  }

  get low() {
    return Math.min(this.edges[0], this.edges[this.edges.length - 1]);
  }

  get high() {
    return Math.max(this.edges[0], this.edges[this.edges.length - 1]);
  }

  // The sample whose cell holds a coordinate, or -1.
  find(value) {
    const { edges, descends } = this;
    if (value < this.low || value > this.high || !this.values.length) return -1;
    let low = 0;
    let high = this.values.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (descends ? value < edges[middle + 1] : value > edges[middle + 1]) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The index in the array at a coordinate, as a fraction.
  toIndex(value) {
    return interpolate(this.values, this.indices, value, this.descends);
  }

  // The coordinate at an index in the array, as a fraction.
  toValue(index) {
    return interpolate(this.indices, this.values, index, false);
  }

  label(k) {
    if (this.facts.labels) return this.facts.labels[k];
    return this.format(this.values[k]);
  }

  format(value) {
    if (this.latitude) return degrees(value, "N", "S");
    if (this.longitude) return value > 180 ? degrees(value - 360, "E", "W") : degrees(value, "E", "W");
    if (this.facts.kind === "time" && this.usesCoordinates) {
      const text = new Date(value).toISOString();
      return text.slice(0, 16).replace("T", " ");
    }
    const units = this.facts.units && this.usesCoordinates ? ` ${this.facts.units}` : "";
    return number(value, 7) + units;
  }

  ticks(low, high, count) {
    if (this.facts.kind === "time" && this.usesCoordinates) {
      const { at, format } = timeTicks(low, high, count);
      return at.map((value) => [value, format(value)]);
    }
    if (this.latitude || this.longitude) {
      const span = high - low;
      const step = [1, 2, 5, 10, 15, 30, 45, 60, 90].find((each) => span / each <= count) || 90;
      const at = span < 6 ? ticks(low, high, count) : multiples(low, high, step);
      return at.map((value) => [value, this.format(value)]);
    }
    if (this.facts.labels && !this.usesCoordinates) {
      return ticks(low, high, count).filter(Number.isInteger).map((index) => {
        const k = Math.round((index - this.start) / this.step);
        return [index, String(this.facts.labels[k] ?? index).slice(0, 16)];
      });
    }
    const found = ticks(low, high, count).filter((value) => this.usesCoordinates || Number.isInteger(value));
    return found.map((value) => [value, number(value, 6)]);
  }

  title() {
    const { facts } = this;
    const name = facts.long_name || facts.name;
    if (this.latitude || this.longitude || facts.kind === "time") return facts.name;
    return facts.units && this.usesCoordinates ? `${name} (${facts.units})` : name;
  }
}

function multiples(low, high, step) {
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9; k++) found.push(k === 0 ? 0 : k * step);
  return found;
}

function edgesOf(values, latitude) {
  const count = values.length;
  const edges = new Float64Array(count + 1);
  if (count === 0) return edges;
  if (count === 1) {
    edges[0] = values[0] - 0.5;
    edges[1] = values[0] + 0.5;
    return edges;
  }
  for (let k = 1; k < count; k++) edges[k] = (values[k - 1] + values[k]) / 2;
  edges[0] = values[0] - (values[1] - values[0]) / 2;
  edges[count] = values[count - 1] + (values[count - 1] - values[count - 2]) / 2;
  if (latitude) {
    edges[0] = Math.max(-90, Math.min(90, edges[0]));
    edges[count] = Math.max(-90, Math.min(90, edges[count]));
  }
  return edges;
}

function interpolate(from, to, value, descends) {
  const count = from.length;
  if (count === 0) return 0;
  if (count === 1) return to[0] + (value - from[0]);
  let low = 0;
  let high = count - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (descends ? from[middle] > value : from[middle] < value) low = middle;
    else high = middle;
  }
  const part = (value - from[low]) / (from[high] - from[low]);
  return to[low] + part * (to[high] - to[low]);
}
