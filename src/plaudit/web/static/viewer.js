// Frames of one episode: cameras side by side, images fetched ahead, and strips and plots with a common cursor.

import { color, legend, plain } from "./charts.js";
import { el, frameUrl, svg } from "./dom.js";

const AHEAD = 24, AT_ONCE = 6, KEPT = 800; // images

// Loads images, a few at a time. What is wanted replaces what was wanted before, so a slow link is not kept busy with
// frames that nobody waits for.
class Loader {
  constructor(loaded) {
    Object.assign(this, { loaded, images: new Map(), queue: [], busy: 0 });
  }

  ready(url) { return this.images.get(url)?.complete && this.images.get(url).naturalWidth > 0; }

  want(urls) {
    this.queue = urls.filter((url) => !this.images.has(url));
    this.pump();
  }

  pump() {
    while (this.busy < AT_ONCE && this.queue.length) {
      const url = this.queue.shift(), image = new Image();
      this.images.set(url, image);
      if (this.images.size > KEPT) this.images.delete(this.images.keys().next().value);
      this.busy++;
      const done = (ok) => {
        this.busy--;
        if (ok) this.loaded(url);
        else this.images.delete(url);
        this.pump();
      };
      image.onload = () => done(true);
      image.onerror = () => done(false);
      image.src = url;
    }
  }
}

export class Cameras {
  constructor(store, id, storeId, cameras) {
    this.names = Object.keys(cameras);
    this.url = (camera, frame) => frameUrl(store, id, storeId, camera, frame);
    this.images = {};
    this.wanted = {}; // camera -> the address of the current frame
    this.loader = new Loader((url) => this.names.filter((camera) => this.wanted[camera] === url).forEach((camera) => this.paint(camera)));
    this.node = el("div", { class: "cameras" }, ...this.names.map((camera) => {
      const [height, width] = cameras[camera];
      const image = (this.images[camera] = el("img", { alt: camera, width, height }));
      const figure = el("figure", {}, image, el("figcaption", {}, `${camera} ${width}x${height}`));
      figure.style.maxWidth = `calc(52vh * ${width / height})`;
      return figure;
    }));
    if (!this.names.length) this.node.append(el("p", { class: "muted" }, "This episode has no images."));
  }

  show(frame, count, outcome) {
    this.frame = frame;
    const ahead = Math.ceil(AHEAD / Math.max(1, this.names.length / 4)); // fewer of many cameras
    const order = [frame, ...Array.from({ length: ahead }, (_, n) => frame + 1 + n), frame - 1, frame - 2].filter((one) => one >= 0 && one < count);
    for (const camera of this.names) {
      this.wanted[camera] = this.url(camera, frame);
      this.images[camera].parentNode.className = outcome;
      if (this.loader.ready(this.wanted[camera])) this.paint(camera);
    }
    this.loader.want(order.flatMap((one) => this.names.map((camera) => this.url(camera, one))));
  }

  paint(camera) {
    this.images[camera].src = this.wanted[camera];
    this.images[camera].dataset.frame = this.frame;
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
      parts.push(svg("rect", { x: first * width, y: 19, width: (last - first + 1) * width, height: 7, class: "person" }));
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
      const path = svg("path", { d, fill: "none", "stroke-width": 2, "vector-effect": "non-scaling-stroke" });
      path.style.stroke = color(number);
      this.svg.append(path);
    });
    this.svg.append(this.cursor);
    const bounds = el("div", { class: "row" }, el("b", {}, title), el("span", { class: "muted grow" }, `${plain(low)} to ${plain(high)}`), this.value = el("span", { class: "muted" }));
    this.series = series;
    this.node = el("div", { class: "trace" }, bounds, names.length ? legend(names) : "", this.svg);
  }

  show(frame) {
    this.value.textContent = this.series.length > 4 ? "" : this.series.map((line) => (line[frame] ?? null) === null ? "-" : plain(line[frame])).join(", ");
    const x = cursorOf(this.count, frame);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
  }
}

// The scores of a judge. frames: chooses those that the page has
export function judgePlot(trace, seek, frames = (values) => values) {
  const { source, outcome, threshold, ood } = trace;
  const rule = threshold === null ? "" : `, threshold ${threshold}`;
  return new Plot(`${source}: ${outcome}, P(success)${rule}${ood ? `, out of distribution: ${ood}` : ""}`, [frames(trace.probs)],
    { range: [0, 1], levels: threshold === null ? [] : [threshold], seek });
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
