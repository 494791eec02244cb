// Commands that pages start: import a data set, train a judge. Only one runs at a time.

import { ask, el, link, section, select, tell } from "./dom.js";

const EVERY_MS = 1500;
const ENCODERS = { small: "small network, from scratch", keypoints: "keypoints, from scratch", efficientnet_lite0: "EfficientNet-Lite0, needs its weights" };

// The forms and the list of commands; `changed` is called when one has ended. Returns a function that ends it.
export async function tasksPart(page, items, changed) {
  const list = el("div"), forms = el("div");
  const start = async (body) => {
    try {
      await ask("/api/tasks", body);
      await draw();
    } catch (error) {
      tell(error.message, true);
    }
  };
  let timer = null, left = false, states = "";
  const draw = async () => {
    clearTimeout(timer);
    const tasks = await ask("/api/tasks").catch(() => null);
    if (left) return;
    if (tasks) {
      list.replaceChildren(...tasks.map((task) => taskCard(task, draw)));
      const now = tasks.map((task) => task.state).join();
      if (states.includes("running") && !now.includes("running")) changed();
      states = now;
    }
    if (!tasks || tasks.some((task) => task.state === "running")) timer = setTimeout(draw, EVERY_MS);
  };
  const datasets = items.filter((item) => item.kind === "dataset"), stores = items.filter((item) => item.kind === "store" && item.labeled);
  if (datasets.length) forms.append(form("Import a LeRobot data set", datasets, "Import", (name) => start({ kind: "import", name })));
  if (stores.length) forms.append(trainForm(stores, start));
  if (forms.children.length) page.append(section("Start", forms, list));
  await draw();
  return () => { left = true; clearTimeout(timer); };
}

function form(title, items, action, submit, ...more) {
  let name = items[0].name;
  const choose = select(title, Object.fromEntries(items.map((item) => [item.name, item.name])), name, (value) => { name = value; });
  return el("form", { class: "row", onsubmit: (event) => { event.preventDefault(); submit(name); } },
    el("b", { class: "what" }, title), choose, ...more, el("button", { type: "submit" }, action));
}

function trainForm(stores, start) {
  const minutes = el("input", { type: "number", min: 1, max: 1440, value: 5, "aria-label": "minutes", size: 5 });
  let encoder = "small";
  const network = select("network", ENCODERS, encoder, (value) => { encoder = value; });
  return form("Train a judge on the labels", stores, "Train", (name) => start({ kind: "train-reward", name, encoder, minutes: Number(minutes.value) }),
    network, el("label", {}, minutes, " minutes at most"));
}

function taskCard(task, draw) {
  const made = task.result.name === null ? null : el("a", { class: "button", href: link({ store: "episodes", judge: "judge" }[task.result.kind], task.result.name) }, `Open ${task.result.name}`);
  const stop = async () => { await ask("/api/tasks/stop", { number: task.number }).catch((error) => tell(error.message, true)); await draw(); };
  return el("div", { class: `card task ${task.state}` }, el("div", { class: "row" }, el("b", { class: "state" }, task.state), el("span", { class: "muted grow" }, `${task.seconds} s`),
    task.state === "running" ? el("button", { onclick: stop }, "Stop") : task.state === "finished" ? made : null),
  el("code", {}, task.command), el("details", { open: task.state !== "finished" }, el("summary", {}, "Output"), el("pre", {}, task.output)));
}
