// Colour maps whose lightness changes evenly, computed in the OKLab colour space (Björn Ottosson, public domain).

function fromOklch(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
}

function toSrgb(linear) {
  return linear.map((each) => {
    const value = Math.min(1, Math.max(0, each));
    return Math.round(255 * (value <= 0.0031308 ? 12.92 * value : 1.055 * value ** (1 / 2.4) - 0.055));
  });
}

function colour(lightness, chroma, hue) {
  // A colour that a screen cannot show gets less chroma, not another lightness.
  let strength = chroma;
  let linear = fromOklch(lightness, strength, hue);
  while (strength > 0.004 && linear.some((each) => each < -0.0005 || each > 1.0005)) {
    strength -= 0.004;
    linear = fromOklch(lightness, strength, hue);
  }
  return toSrgb(linear);
}

function between(points, at) {
  const place = at * (points.length - 1);
  const low = Math.min(Math.floor(place), points.length - 2);
  const part = place - low;
  return points[low] + (points[low + 1] - points[low]) * part;
}

function ramp({ lightness, chroma, hue, upper }) {
  const table = [];
  for (let i = 0; i < 256; i++) {
    const at = i / 255;
    // A diverging map has other hues in its upper half. They meet where it is almost white.
    const angle = !upper ? between(hue, at) : at < 0.5 ? between(hue, 2 * at) : between(upper, 2 * at - 1);
    table.push(colour(between(lightness, at), between(chroma, at), angle));
  }
  return table;
}

const RECIPES = {
  Aurora: { lightness: [0.24, 0.93], chroma: [0.12, 0.13, 0.13, 0.14, 0.17], hue: [300, 262, 205, 155, 108] },
  Ice: { lightness: [0.2, 0.97], chroma: [0.06, 0.12, 0.11, 0.07, 0.02], hue: [268, 256, 240, 222, 205] },
  Ember: { lightness: [0.2, 0.95], chroma: [0.07, 0.16, 0.19, 0.17, 0.1], hue: [305, 355, 390, 422, 458] },
  Grey: { lightness: [0.18, 0.97], chroma: [0, 0], hue: [0, 0] },
  "Blue–red": { lightness: [0.42, 0.7, 0.965, 0.7, 0.42], chroma: [0.16, 0.11, 0.003, 0.13, 0.19], hue: [258, 246], upper: [36, 25] },
};

export const NAMES = Object.keys(RECIPES);
export const DIVERGING = "Blue–red";
const made = new Map();

export function table(name) {
  const known = RECIPES[name] ? name : "Aurora";
  if (!made.has(known)) {
    const rows = ramp(RECIPES[known]);
    const packed = new Uint32Array(256);
    rows.forEach(([r, g, b], i) => (packed[i] = (255 << 24) | (b << 16) | (g << 8) | r));
    made.set(known, { rows, packed });
  }
  return made.get(known);
}

export function css([r, g, b]) {
  return `rgb(${r} ${g} ${b})`;
}

// Distinct colours of equal weight, for lanes, objects and commits.
export function category(index) {
  const hues = [248, 150, 60, 330, 195, 25, 105, 290];
  return css(colour(0.66 + 0.05 * (Math.floor(index / hues.length) % 3), 0.135, hues[index % hues.length] + 11 * Math.floor(index / hues.length)));
}
