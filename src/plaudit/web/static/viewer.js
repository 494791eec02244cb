// Frames of one episode: cameras side by side, images fetched ahead, and strips and plots with a common cursor.

import { el, frameUrl, svg } from "./dom.js";

const AHEAD = 24;
const COLORS = ["success", "series-2", "series-3", "series-4", "series-5"].map((name) => `var(--${name})`);

export class Cameras {
  constructor(store, id, storeId, cameras) {
    this.names = Object.keys(cameras);
    this.url = (camera, frame) => frameUrl(store, id, storeId, camera, frame);
    this.images = {};
    this.loaded = new Map();
    this.node = el("div", { class: "cameras" }, ...this.names.map((camera) => {
      const [height, width] = cameras[camera];
      const image = (this.images[camera] = el("img", { alt: camera, width, height }));
      return el("figure", {}, image, el("figcaption", {}, `${camera} ${width}x${height}`));
    }));
    if (!this.names.length) this.node.append(el("p", { class: "muted" }, "This episode has no images."));
  }

  show(frame, count, word) {
    for (const camera of this.names) {
      const image = this.images[camera];
      image.src = this.fetch(camera, frame).src;
      image.dataset.frame = frame;
      image.parentNode.className = word ?? "";
      for (let next = frame + 1; next <= Math.min(frame + AHEAD, count - 1); next++) this.fetch(camera, next);
      if (frame > 0) this.fetch(camera, frame - 1);
    }
  }

  fetch(camera, frame) {
    const url = this.url(camera, frame);
    if (!this.loaded.has(url)) {
      const image = new Image();
      image.src = url;
      this.loaded.set(url, image);
      if (this.loaded.size > 600) this.loaded.delete(this.loaded.keys().next().value);
    }
    return this.loaded.get(url);
  }
}

// Calls seek(fraction of the width) while the pointer is held on a node.
export function scrubs(node, seek) {
  const move = (event) => {
    const box = node.getBoundingClientRect();
    seek(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
  };
  node.addEventListener("pointerdown", (event) => { node.setPointerCapture(event.pointerId); move(event); });
  node.addEventListener("pointermove", (event) => { if (event.buttons) move(event); });
  return node;
}

const cursorOf = (count, frame) => (count > 1 ? frame / (count - 1) : 0) * 1000;

// A strip of 1, 0 and null for each frame.
export class Strip {
  constructor(seek) {
    this.cursor = svg("line", { y1: 0, y2: 26, stroke: "currentColor", "stroke-width": 3 });
    this.node = scrubs(svg("svg", { class: "strip", viewBox: "0 0 1000 26", preserveAspectRatio: "none" }), seek);
  }

  draw(frames, ranges = []) {
    const count = frames.length, width = 1000 / count, parts = [];
    for (let first = 0; first < count;) {
      let last = first;
      while (last + 1 < count && frames[last + 1] === frames[first]) last++;
      const color = frames[first] === null ? "--none" : frames[first] ? "--success" : "--failure";
      const box = svg("rect", { x: first * width, y: 0, width: (last - first + 1) * width, height: 26 });
      box.style.fill = `var(${color})`;
      parts.push(box);
      first = last + 1;
    }
    for (const [first, last] of ranges) {
      parts.push(svg("rect", { x: first * width, y: 19, width: (last - first + 1) * width, height: 7, fill: "#f2e35b" }));
    }
    this.count = count;
    this.node.replaceChildren(...parts, this.cursor);
  }

  show(frame) {
    const x = ((frame + 0.5) / this.count) * 1000;
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
  }
}

// Lines over frames; levels are dashed.
export class Plot {
  constructor(title, series, { range = null, levels = [], names = [], seek }) {
    const values = series.flat().filter((value) => value !== null);
    const [low, high] = range ?? [Math.min(...values, 0), Math.max(...values, 1e-9)];
    const y = (value) => 86 - (80 * (value - low)) / (high - low || 1);
    this.cursor = svg("line", { y1: 0, y2: 92, stroke: "currentColor", "stroke-width": 2 });
    this.svg = scrubs(svg("svg", { class: "plot", viewBox: "0 0 1000 92", preserveAspectRatio: "none" }), seek);
    this.count = Math.max(...series.map((line) => line.length), 1);
    for (const level of levels) {
      this.svg.append(svg("line", { x1: 0, x2: 1000, y1: y(level), y2: y(level), class: "axis", "stroke-dasharray": "8 6", "stroke-width": 2 }));
    }
    series.forEach((line, number) => {
      let d = "", pen = false;
      line.forEach((value, frame) => {
        if (value === null) { pen = false; return; }
        d += `${pen ? "L" : "M"}${cursorOf(this.count, frame).toFixed(1)} ${y(value).toFixed(1)}`;
        pen = true;
      });
      this.svg.append(svg("path", { d, fill: "none", stroke: COLORS[number % COLORS.length], "stroke-width": 2, "vector-effect": "non-scaling-stroke" }));
    });
    this.svg.append(this.cursor);
    const bounds = el("span", { class: "muted" }, `${title}  (${low.toPrecision(3)} to ${high.toPrecision(3)})`);
    this.node = el("div", {}, bounds, legend(names), this.svg);
  }

  show(frame) {
    const x = cursorOf(this.count, frame);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
  }
}

export function legend(names) {
  return el("span", { class: "legend" }, ...names.map((name, number) => {
    const mark = el("i");
    mark.style.background = COLORS[number % COLORS.length];
    return el("span", {}, mark, name);
  }));
}

// Plays by the clock, so that a slow machine skips frames instead of slowing down.
export class Player {
  constructor(show) {
    this.show = show;
    this.speed = 1;
    this.timer = null;
  }

  get playing() { return this.timer !== null; }

  toggle(frame, count, fps) {
    if (this.playing) return this.pause();
    const start = performance.now(), first = frame >= count - 1 ? 0 : frame;
    this.timer = setInterval(() => {
      const now = first + Math.floor(((performance.now() - start) / 1000) * fps * this.speed);
      this.show(Math.min(now, count - 1));
      if (now >= count - 1) this.pause();
    }, Math.max(15, 1000 / (fps * this.speed)));
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
  }

  change(by) { this.speed = Math.min(8, Math.max(0.125, this.speed * by)); }
}
