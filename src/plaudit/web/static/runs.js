// Runs and judges: the verdict first, then curves, numbers and events. A live run is asked for again every few seconds.

import { ask, clock, el, link, path, percent, svg, when } from "./dom.js";
import { legend } from "./viewer.js";

const COLORS = ["success", "series-2", "series-3", "series-4", "series-5"].map((name) => `var(--${name})`);
const EVERY_MS = 3000;

export async function runPage({ page, crumbs, name }) {
  crumbs.append(name);
  let timer = null, ended = false;
  const draw = async () => {
    const run = await ask(`/api/run/${path(name)}`);
    if (ended) return;
    page.replaceChildren(...runParts(name, run));
    if (run.live) timer = setTimeout(() => draw().catch(() => { timer = setTimeout(draw, EVERY_MS); }), EVERY_MS);
  };
  await draw();
  return () => { ended = true; clearTimeout(timer); };
}

function runParts(name, run) {
  const links = [
    run.episodes ? el("a", { href: link("episodes", run.episodes) }, "Episodes") : null,
    run.episodes ? el("a", { href: link("label", run.episodes) }, "Label") : null,
    run.report ? el("a", { href: `/report/run/${path(name)}`, target: "_blank" }, "Report") : null,
  ];
  const curves = Object.entries(run.curves).map(([title, points]) => el("div", { class: "card" }, el("div", { class: "muted" }, title), chart([points], { width: 400 })));
  return [
    el("div", { class: "row" }, el("h1", { class: "grow" }, name), el("span", { class: "muted" }, `${run.live ? "live, " : ""}${run.step.toLocaleString()} steps, ${clock(run.elapsed_s)}`), ...links),
    verdict(run.verdict),
    el("h2", {}, "Success"),
    Object.keys(run.success).length ? el("div", { class: "card" }, legend(Object.keys(run.success)), chart(Object.values(run.success), { range: [0, 1], band: run.band, unit: percent })) : el("p", { class: "muted" }, "No episode has been labeled yet."),
    run.about ? el("p", { class: "muted" }, run.about) : null,
    run.events.length ? el("h2", {}, "Events") : null,
    el("table", {}, ...run.events.map((event) => el("tr", {}, el("th", {}, when(event.time)), el("td", { class: ["alarm", "error"].includes(event.kind) ? "warn" : "" }, event.message)))),
    curves.length ? el("h2", {}, "More curves") : null,
    el("div", { class: "charts" }, ...curves),
    el("h2", {}, "Latest numbers"), numbers(run.latest),
    el("p", { class: "muted" }, "The emergency stop is not offered here. Keep it at the robot."),
  ].filter(Boolean);
}

function verdict(lines) {
  return el("div", { class: "card verdict" }, ...lines.map((line) => {
    const [words, command] = line.split(/: (?=plaudit )/);
    return el("p", {}, command ? `${words}: ` : line, command ? el("code", {}, command) : "");
  }));
}

function numbers(values) {
  return el("table", { class: "numbers" }, ...Object.entries(values).map(([name, value]) => el("tr", {}, el("th", {}, name), el("td", {}, typeof value === "number" ? Number(value.toPrecision(4)).toString() : `${value}`))));
}

// Lines over env steps, and a band of [x, low, high].
function chart(series, { range = null, band = [], width = Math.min(800, innerWidth), unit = (value) => Number(value.toPrecision(3)).toString() }) {
  const points = series.flat(), xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
  const left = 44, right = width - 8, top = 8, bottom = 196, end = Math.max(...xs, 1);
  const [low, high] = range ?? [Math.min(0, ...ys), Math.max(...ys, 1e-9)];
  const x = (value) => left + ((right - left) * value) / end;
  const y = (value) => bottom - ((bottom - top) * (value - low)) / (high - low || 1);
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} 216` });
  for (let tick = 0; tick <= 4; tick++) {
    const value = low + ((high - low) * tick) / 4;
    const label = svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" });
    label.textContent = unit(value);
    root.append(svg("line", { class: "axis", x1: left, x2: right, y1: y(value), y2: y(value) }), label);
  }
  for (const part of [0, 0.5, 1]) {
    const label = svg("text", { x: x(part * end), y: bottom + 16, "text-anchor": part === 1 ? "end" : "middle" });
    label.textContent = `${Math.round(part * end).toLocaleString()}${part === 1 ? " steps" : ""}`;
    root.append(label);
  }
  if (band.length > 1) {
    const upper = band.map(([at, , to]) => `${x(at)},${y(to)}`), lower = band.map(([at, from]) => `${x(at)},${y(from)}`).reverse();
    root.append(svg("polygon", { points: [...upper, ...lower].join(" "), fill: COLORS[1], opacity: 0.15 }));
  }
  series.forEach((line, number) => root.append(svg("polyline", { points: line.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "), fill: "none", stroke: COLORS[number % COLORS.length], "stroke-width": 2 })));
  return root;
}

export async function judgePage({ page, crumbs, name }) {
  crumbs.append(name);
  const judge = await ask(`/api/judge/${path(name)}`);
  page.append(el("div", { class: "row" }, el("h1", { class: "grow" }, name), judge.report ? el("a", { href: `/report/judge/${path(name)}`, target: "_blank" }, "Report with the worst frames") : ""),
    verdict(judge.verdict), el("h2", {}, "Scores of held-out frames"), numbers(judge.scores));
}
