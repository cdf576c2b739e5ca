// Elements, texts and numbers. Text of a repository only becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.setAttribute("class", value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) node.style.setProperty(key, each);
    else if (name === "value") node.value = value;
    else if (name === "checked") node.checked = Boolean(value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
}

export function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

export function replace(node, ...children) {
  node.replaceChildren();
  return append(node, children);
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  if (count < 1024) return `${count} B`;
  let value = count;
  for (const unit of ["KiB", "MiB", "GiB", "TiB", "PiB"]) {
    value /= 1024;
    if (value < 1023.95 || unit === "PiB") return `${value.toFixed(value < 9.95 ? 1 : 0)} ${unit}`;
  }
}

export function plural(count, noun, many) {
  return `${Number(count).toLocaleString("en")} ${count === 1 ? noun : many || noun + "s"}`;
}

export function number(value, digits = 5) {
  if (value === null || value === undefined || Number.isNaN(value)) return "missing";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) {
    const [front, power] = value.toExponential(Math.max(digits - 2, 1)).split("e");
    return `${Number(front)}e${Number(power)}`.replaceAll("-", "−");
  }
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

export function when(text) {
  const time = new Date(text);
  return time.toISOString().slice(0, 16).replace("T", " ") + " UTC";
}

export function ago(text) {
  const seconds = (Date.now() - new Date(text)) / 1000;
  const units = [["year", 31557600], ["month", 2629800], ["day", 86400], ["hour", 3600], ["minute", 60]];
  for (const [unit, size] of units) {
    if (seconds >= size) return `${plural(Math.floor(seconds / size), unit)} ago`;
  }
  return "just now";
}

export function isoTime(milliseconds) {
  const time = new Date(milliseconds);
  if (Number.isNaN(time.getTime())) return "?";
  const text = time.toISOString();
  if (text.endsWith("T00:00:00.000Z")) return text.slice(0, -14);
  return text.slice(0, text.endsWith(":00.000Z") ? -8 : -5).replace("T", " ");
}

export function shortId(id) {
  return id.slice(0, 8);
}

export function spinner(text) {
  return h("p", { class: "loading", role: "status" }, h("span", { class: "spin", "aria-hidden": "true" }), text || "Loading…");
}

export function problem(error) {
  return h("div", { class: "problem", role: "alert" }, h("strong", null, "This could not be shown. "), error.message || String(error));
}

// A row of tabs that arrow keys move through.
export function tabList(label, entries, current, choose) {
  const list = h("div", { class: "subtabs", role: "tablist", "aria-label": label });
  for (const [name, title] of entries) {
    list.append(
      h("button", {
        type: "button", role: "tab", "aria-selected": String(name === current), tabindex: name === current ? "0" : "-1",
        "data-tab": name, onclick: () => choose(name),
      }, title),
    );
  }
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const names = entries.map(([name]) => name);
    choose(names[(names.indexOf(current) + step + names.length) % names.length], true);
  });
  return list;
}
