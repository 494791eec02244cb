// Line charts over env steps or epochs, in the colors of the reports.

import { el, svg } from "./dom.js";

export const color = (number) => `var(--${number % 5 ? `series-${(number % 5) + 1}` : "success"})`;

export function legend(names) {
  return el("p", { class: "legend" }, ...names.map((name, number) => {
    const mark = el("i");
    mark.style.background = color(number);
    return el("span", {}, mark, name);
  }));
}

// The width of a chart that fills the page.
export const chartWidth = () => Math.max(320, Math.min(1500, document.getElementById("page").clientWidth - 80));

// A range whose quarters are short numbers.
function rounded(low, high) {
  const quarter = (high - low) / 4 || 0.25, power = 10 ** Math.floor(Math.log10(quarter));
  for (let step = power; ; step = step / power < 9 ? step + power / 2 : step * 2) {
    const bottom = Math.floor(low / step) * step;
    if (step >= quarter && bottom + 4 * step >= high - 1e-9) return [bottom, bottom + 4 * step];
  }
}

const text = (words, attributes) => {
  const node = svg("text", attributes);
  node.textContent = words;
  return node;
};

// series: lists of [x, y], number `dashed` with gaps; band: [x, low, high] of series `bandOf`; markers: [x, text, is bad]
export function chart(series, { range = null, band = [], bandOf = 1, markers = [], dashed = -1, unit = plain, last = "steps", width = 640, height = 216 } = {}) {
  const points = series.flat(), xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
  const left = 56, right = width - 12, top = 18, bottom = height - 26, end = Math.max(...xs, 1);
  const [low, high] = range ?? rounded(Math.min(0, ...ys), Math.max(0, ...ys));
  const x = (value) => left + ((right - left) * value) / end;
  const y = (value) => bottom - ((bottom - top) * (Math.min(high, Math.max(low, value)) - low)) / (high - low || 1);
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (let tick = 0; tick <= 4; tick += width < 500 ? 2 : 1) {
    const value = low + ((high - low) * tick) / 4;
    root.append(svg("line", { class: "axis", x1: left, x2: right, y1: y(value), y2: y(value) }),
      text(unit(value), { x: left - 6, y: y(value) + 4, "text-anchor": "end" }));
  }
  for (const part of [0, 0.5, 1]) {
    const anchor = { 0: "start", 0.5: "middle", 1: "end" }[part];
    root.append(text(`${plain(part * end)}${part === 1 ? ` ${last}` : ""}`, { x: x(part * end), y: bottom + 18, "text-anchor": anchor }));
  }
  if (band.length > 1) {
    const upper = band.map(([at, , to]) => `${x(at)},${y(to)}`), lower = band.map(([at, from]) => `${x(at)},${y(from)}`).reverse();
    root.append(styled(svg("polygon", { points: [...upper, ...lower].join(" "), opacity: 0.18 }), { fill: color(bandOf) }));
  }
  markers.forEach(([at, words, bad]) => {
    const near = x(at) > (left + right) / 2;
    root.append(svg("line", { class: bad ? "marker bad" : "marker", x1: x(at), x2: x(at), y1: top, y2: bottom }),
      text(words, { x: x(at) + (near ? -4 : 4), y: 12, "text-anchor": near ? "end" : "start" }));
  });
  series.forEach((line, number) => {
    const path = line.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ");
    const node = line.length > 1 ? svg("polyline", { points: path, fill: "none", "stroke-width": 2 })
      : svg("circle", { cx: x(line[0][0]), cy: y(line[0][1]), r: 4 });
    if (number === dashed) node.setAttribute("stroke-dasharray", "5 5"); // another curve may lie below it
    root.append(styled(node, line.length > 1 ? { stroke: color(number) } : { fill: color(number) }));
  });
  return root;
}

export const plain = (value) => Math.abs(value) >= 10000
  ? Intl.NumberFormat("en", { notation: "compact" }).format(value) : Number(value.toPrecision(3)).toLocaleString("en");

function styled(node, style) {
  Object.assign(node.style, style);
  return node;
}
