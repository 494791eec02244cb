// Labeling: the keys of the labeling window. The server does each action and answers with the session.

import { ask, el, isTyping, link, path, section, select, tell, verdict } from "./dom.js";
import { Cameras, judgePlot, Player, Strip } from "./viewer.js";

const KEYS = { ArrowLeft: "Left", ArrowRight: "Right", Escape: "Esc", Enter: "Return", PageDown: "PgDown", PageUp: "PgUp", " ": "Space" };
const MOVES = { back: -1, forward: 1, back_10: -10, forward_10: 10, first: -1e9, last: 1e9 };
const RETRY_MS = 1000, ALIVE_MS = 5000;
const ORDERS = {
  unlabeled: "unlabeled first", disagreement: "most disputed first", uncertain: "least certain first", random: "random order",
  repeat: "label again, to measure agreement",
};
const REASONS = {
  unlabeled: "These episodes have no label from a person.", disagreement: "Judges differ most on these episodes.",
  uncertain: "The judge is least certain about these episodes.", random: "These episodes have no label from a person.",
  repeat: "You have labeled these episodes once; your label is hidden.",
};
const DONE = {
  repeat: "No episodes to label again. Label some first. They appear here once more, without your earlier label.",
};

export async function labelPage({ page, crumbs, name: store, query }) {
  crumbs.append(el("a", { href: link("episodes", store) }, store), " / label");
  const person = query.get("name") ?? localStorage.getItem("labeler");
  if (!person) return askName(page);
  const table = await ask("/api/keys");
  const label = new LabelPage(page, store, person, query, table);
  await label.send(query.has("open") ? { open: Number(query.get("open")) } : {});
  return label.start();
}

function askName(page) {
  const input = el("input", { placeholder: "Your name", "aria-label": "Your name", maxlength: 60, autofocus: true });
  const save = (event) => {
    event.preventDefault();
    if (!input.value.trim()) return;
    localStorage.setItem("labeler", input.value.trim());
    dispatchEvent(new HashChangeEvent("hashchange"));
  };
  const why = "Your name is stored with your labels. Two people never get the same episode.";
  page.append(el("h1", {}, "Label episodes"), verdict({ result: "Who is labeling?", why, advice: "Enter your name", tone: "open" }),
    el("form", { class: "row", onsubmit: save }, input, el("button", { type: "submit" }, "Start")));
  input.focus();
}

class LabelPage {
  constructor(page, store, person, query, table) {
    Object.assign(this, { store, person, page });
    this.order = query.get("order") ?? "unlabeled";
    this.blind = query.has("blind");
    this.actions = new Map(Object.values(table).flat().map((action) => [action.name, action]));
    this.byKey = new Map([...this.actions.values()].flatMap((action) => action.keys.map((key) => [key, action])));
    this.pending = Promise.resolve();
    this.player = new Player((frame) => this.seek(frame));
    this.head = el("div");
    this.view = el("div");
    this.curves = el("div");
    this.help = el("div", { hidden: true }, section("Keys", this.buttons(table)));
    this.rows = el("ul", { class: "queue" });
    this.keys = this.main();
    this.queue = section("Queue", this.rows);
    page.append(this.head, el("div", { class: "two" }, el("div", {}, this.view, this.keys, this.help, this.curves), this.queue));
  }

  start() {
    const keys = (event) => this.key(event);
    addEventListener("keydown", keys);
    // Keeps the episode reserved, also after a restart of the server, and looks for new ones when all are done.
    const timer = setInterval(() => this.alive(), ALIVE_MS);
    return () => { removeEventListener("keydown", keys); clearInterval(timer); this.player.pause(); this.left = true; };
  }

  async alive() {
    if (this.busy) return;
    if (this.state?.episode === null) return this.send({});
    const body = { name: this.person, order: this.order, blind: this.blind, episode: this.state?.episode };
    const state = await ask(`/api/label/${path(this.store)}`, body).catch(() => null);
    if (state && !this.busy && state.episode !== this.state.episode) this.draw(state);
  }

  button(action) {
    const act = (event) => {
      if (event.detail) event.currentTarget.blur(); // after a click, Enter and Space are keys of the page again
      this.act(action);
    };
    return el("button", { "data-action": action.name, title: action.description, onclick: act },
      el("span", { class: "grow" }, action.title), el("kbd", {}, action.keys[0].replace("Return", "Enter")));
  }

  main() {
    const shown = ["success_from_here", "fail", "label_success", "label_failure", "exclude", "undo", "complete"];
    return el("div", { class: "keys" }, ...shown.map((name) => this.button(this.actions.get(name))),
      el("button", { onclick: () => this.act(this.actions.get("help")) }, el("span", { class: "grow" }, "All keys"), el("kbd", {}, "?")));
  }

  buttons(table) {
    return el("div", { class: "keys" }, ...Object.values(table).flat().map((action) => this.button(action)));
  }

  key(event) {
    if (isTyping(event)) return;
    let key = KEYS[event.key] ?? (event.key.length === 1 ? event.key.toUpperCase() : event.key);
    if (event.ctrlKey) key = `Ctrl+${event.shiftKey ? "Shift+" : ""}${key}`;
    else if (event.shiftKey && event.key.startsWith("Arrow")) key = `Shift+${key}`;
    const action = this.byKey.get(key);
    if (!action || (event.repeat && !action.repeats)) return;
    event.preventDefault();
    this.act(action);
  }

  act(action) {
    const state = this.state;
    if (action.name === "help") return void (this.help.hidden = !this.help.hidden);
    if (!state || state.episode === null) return;
    if (action.name === "play") return this.player.toggle(this.frame, state.count, state.fps);
    if (action.name === "slower" || action.name === "faster") return this.player.change(action.name === "faster" ? 2 : 0.5);
    this.player.pause();
    if (action.name in MOVES) return this.seek(this.frame + MOVES[action.name]);
    this.send({ action: action.name, episode: state.episode, frame: this.frame, selection: state.selection });
  }

  // One request at a time, in order, each until it is answered: a key is not lost while the server restarts.
  send(request) {
    const body = { ...request, name: this.person, order: this.order, blind: this.blind };
    this.busy = (this.busy ?? 0) + 1;
    this.pending = this.pending.then(async () => {
      for (;;) {
        if (this.left) return;
        try {
          const state = await ask(`/api/label/${path(this.store)}`, body);
          return this.draw(state, ["undo", "redo"].includes(request.action));
        } catch (error) {
          tell(error.message, true);
          if (!error.message.includes("does not answer")) return;
          await new Promise((done) => setTimeout(done, RETRY_MS));
        }
      }
    }).finally(() => { this.busy--; });
    return this.pending;
  }

  // jumps: to where the session is; else the cursor stays where the person has moved it meanwhile
  draw(state, jumps = false) {
    const before = this.state;
    this.state = state;
    tell(state.error || state.status, Boolean(state.error));
    this.drawHead(state);
    this.rows.replaceChildren(...(state.rows ?? []).map((row) => el("li", { class: `${row.state} ${row.id === state.episode ? "current" : ""}` },
      el("button", { onclick: () => this.send({ open: row.id }) }, `${{ done: "✓", draft: "✎", open: "·" }[row.state]} ${row.id}${row.state === "draft" ? "  draft" : ""}`))));
    const isDone = state.episode === null;
    this.keys.hidden = this.queue.hidden = isDone;
    if (isDone) {
      this.curves.replaceChildren();
      this.view.replaceChildren(el("a", { class: "button", href: "#/" }, state.total ? "Train a judge on the labels" : "Overview"));
      return;
    }
    if (before?.episode !== state.episode) this.open(state);
    const frames = state.runs.flatMap(([first, last, value]) => Array(last - first + 1).fill(value));
    this.labels = frames;
    this.summary.textContent = state.summary;
    this.seek(jumps || before?.episode !== state.episode ? state.frame : this.frame);
  }

  drawHead(state) {
    if (this.head.contains(document.activeElement) && document.activeElement.matches("select, input")) {
      document.activeElement.blur(); // so that keys label again
    }
    const choose = select("order", ORDERS, state.order, (order) => { this.order = order; this.send({}); });
    const change = (event) => { this.blind = event.target.checked; this.state = null; this.send({}); };
    const blind = el("label", {}, el("input", { type: "checkbox", checked: this.blind, onchange: change }), " hide judge results");
    const who = el("button", { onclick: () => { localStorage.removeItem("labeler"); dispatchEvent(new HashChangeEvent("hashchange")); } }, `You are ${this.person}`);
    const lines = verdict(progress(state));
    lines.classList.add("slim");
    lines.querySelector("dd").id = "left";
    this.head.replaceChildren(el("div", { class: "row" },
      el("h1", { class: "grow" }, state.episode === null ? this.store : `Episode ${state.episode}: ${state.task || "no task text"}`), choose, blind, who), lines);
  }

  open(state) {
    this.cameras = new Cameras(this.store, state.episode, state.store, state.cameras);
    const bySlice = (fraction) => { this.player.pause(); this.seek(fraction * (state.count - 1)); };
    this.strip = new Strip(bySlice);
    this.slider = el("input", { class: "range", type: "range", min: 0, max: state.count - 1, "aria-label": "frame",
      oninput: (event) => { this.player.pause(); this.seek(Number(event.target.value)); } });
    this.place = el("span", { class: "muted" });
    this.summary = el("b", { id: "summary" });
    const slice = (values) => values.slice(state.offset, state.offset + state.count);
    this.plots = state.traces.filter((trace) => trace.probs).map((trace) => judgePlot(trace, bySlice, slice));
    this.view.replaceChildren(this.cameras.node, this.slider, this.strip.node,
      el("p", { class: "row" }, this.summary, el("span", { class: "grow" }), this.place));
    this.curves.replaceChildren(...this.plots.map((plot) => plot.node));
  }

  // The marked range as a list of one; its end is the current frame until the person sets it.
  get range() {
    if (!this.state.selection) return [];
    const [mark, end] = this.state.selection, other = end ?? this.frame;
    return [[Math.min(mark, other), Math.max(mark, other)]];
  }

  seek(to) {
    const state = this.state;
    this.frame = Math.min(state.count - 1, Math.max(0, Math.round(to)));
    const value = this.labels[this.frame];
    this.strip.draw(this.labels, this.range);
    this.cameras.show(this.frame + state.offset, state.offset + state.count, value === null ? "" : value ? "success" : "failure");
    this.strip.show(this.frame);
    this.plots.forEach((plot) => plot.show(this.frame));
    this.slider.value = this.frame;
    this.place.textContent = `frame ${this.frame} of ${state.count - 1}, ${(this.frame / state.fps).toFixed(2)} s`;
  }
}

// The three lines of the page: how far the person is, which episodes these are, and what to press.
function progress(state) {
  const result = `${state.left} left of ${state.total}, ${state.completed} completed.`;
  if (state.episode === null) {
    return { result, why: emptyText(state), advice: state.total ? "Train a judge on the labels" : "Record episodes, or import a data set", command: "", tone: state.total ? "good" : "open" };
  }
  const isMarked = state.excluded || state.runs.some(([, , value]) => value !== null);
  const advice = isMarked ? "Press Enter to save this label and open the next episode" : "Press S at the first frame of success, or F if there is none";
  return { result, why: [REASONS[state.order], state.agreement].filter(Boolean).join(" "), advice, command: "", tone: "open" };
}

function emptyText(state) {
  if (!state.total) return "No episodes yet. New episodes appear here.";
  return DONE[state.order] ?? "Every episode is labeled. New episodes appear here.";
}
