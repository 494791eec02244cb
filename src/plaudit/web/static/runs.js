// Runs: the verdict first, then the state of the running loop, success, episodes, rewards, curves and events. A page
// that is open is sent each change over a websocket.

import { chart, chartWidth, legend } from "./charts.js";
import { ask, breakable, clipUrl, clock, count, el, frameUrl, link, path, percent, section, short, table, tell, verdict, when } from "./dom.js";

const RETRY_MS = 3000, RECENT_MS = 10000;
const CLIP = 16; // frames of a short view of an episode (episodes.py, style.css)
const TRUSTED = ["evaluation seeds", "corrected by the audit", "simulator", "judge"]; // kinds of success, the best first
const STOP = "This page has no emergency stop, because a network can fail. Keep the emergency stop at the robot.";

export async function runPage({ page, crumbs, name }) {
  crumbs.append(name);
  const view = new RunPage(page, name);
  view.draw(await ask(`/api/run/${path(name)}`));
  return view.follow();
}

class RunPage {
  constructor(page, name) {
    this.name = name;
    this.top = el("div");
    this.recent = el("div");
    this.rest = el("div");
    page.append(this.top, this.recent, this.rest);
  }

  // Until the page is left; the server is asked again when the connection is lost.
  follow() {
    let socket = null, timer = null, left = false;
    const open = () => {
      socket = new WebSocket(`${location.origin.replace("http", "ws")}/live/${path(this.name)}`);
      socket.onmessage = (event) => {
        const run = JSON.parse(event.data);
        run.error ? tell(run.error, true) : this.draw(run);
      };
      socket.onclose = () => { if (!left) timer = setTimeout(open, RETRY_MS); };
    };
    open();
    return () => { left = true; clearTimeout(timer); socket.close(); };
  }

  draw(run) {
    const actions = this.top.contains(document.activeElement) ? document.activeElement.dataset.command : null;
    this.top.replaceChildren(this.head(run), verdict(run.verdict), ...loopParts(this.name, run), successPart(run));
    this.rest.replaceChildren(...restParts(this.name, run));
    if (actions) this.top.querySelector(`[data-command="${actions}"]`)?.focus();
    if (run.episodes && Date.now() - (this.asked ?? 0) > RECENT_MS) this.drawRecent(run);
  }

  head(run) {
    const to = (kind, name, text) => el("a", { class: "button", href: link(kind, name) }, text);
    return el("div", { class: "row" }, el("h1", { class: "grow" }, ...breakable(this.name)),
      el("span", { class: "muted", id: "extent" }, `${run.live ? "live, " : ""}${run.live?.extent ?? `${run.step.toLocaleString("en")} steps`}, ${clock(run.elapsed_s)}`),
      run.episodes ? to("episodes", run.episodes, "Episodes") : null, run.episodes ? to("label", run.episodes, "Label") : null,
      run.report ? el("a", { class: "button", href: `/report/run/${path(this.name)}`, target: "_blank" }, "Report") : null,
      el("a", { class: "button", href: `/report/run/${path(this.name)}?save` }, "Save as one file"));
  }

  async drawRecent(run) {
    this.asked = Date.now();
    const recent = await ask(`/api/recent/${path(this.name)}`).catch(() => null);
    if (!recent) return;
    const rows = new Map(recent.rows.map((row) => [row.id, row]));
    const clips = (ids) => el("div", { class: "clips" }, ...ids.map((id) => clip(run.episodes, recent.store, rows.get(id))));
    this.recent.replaceChildren(...[
      recent.latest.length ? section("Latest episodes", clips(recent.latest)) : null,
      recent.disputed.length ? section("Most disputed episodes", el("p", { class: "muted" }, "Judges differ most on these episodes."), clips(recent.disputed)) : null,
      recent.rewards.length ? section("Recent rewards", el("div", { class: "clips" },
        ...recent.rewards.map((one) => rewardCard(run.episodes, recent.store, rows.get(one.id), one)))) : null,
    ].filter(Boolean));
  }
}

// A short view of an episode: frames side by side in one image, one after the other.
function clip(store, storeId, row) {
  const moving = matchMedia("(prefers-reduced-motion: reduce)").matches ? "" : " moving";
  const film = row.camera === null ? el("span", { class: "muted" }, "no camera")
    : el("img", { class: `film${moving}`, alt: `episode ${row.id}`, src: clipUrl(store, row.id, storeId, row.camera) });
  const picture = el("div", { class: "picture strip-of-frames" }, film);
  film.onload = () => { picture.style.aspectRatio = film.naturalWidth / CLIP / film.naturalHeight; };
  const opinions = Object.entries(row.opinions).map(([source, outcome]) => `${source}: ${outcome}`).join(", ");
  return el("a", { class: `tile ${row.outcome}`, href: link("episode", store, row.id) }, picture,
    el("div", { class: "text" }, el("b", {}, `${row.id} ${row.outcome}`), el("div", { class: "muted", title: opinions }, opinions || "no label")));
}

function rewardCard(store, storeId, row, reward) {
  const frames = row.camera === null ? [] : reward.frames.map(([frame, value]) => el("figure", {},
    el("img", { alt: `frame ${frame}`, loading: "lazy", src: frameUrl(store, row.id, storeId, row.camera, frame, 120) }),
    el("figcaption", {}, `frame ${frame}: ${value}`)));
  return el("a", { class: `tile ${row.outcome}`, href: link("episode", store, row.id) }, el("div", { class: "rewards" }, ...frames),
    el("div", { class: "text" }, el("b", {}, `${row.id}: reward ${reward.total}`), el("div", { class: "muted" }, `${count(reward.steps, "step")}, by ${reward.source}`)));
}

function loopParts(name, run) {
  const live = run.live;
  if (!live?.rows) return [];
  const problems = live.problems.map((text) => el("p", { class: "card warn" }, text));
  const workers = live.workers.map(([worker, queue, waits]) => [worker, queue,
    el("span", { class: waits ? "muted" : "working" }, waits ? `waits for ${waits}` : "working")]);
  return [
    ...problems,
    el("div", { class: "halves" },
      section("Workers", table(workers, ["worker", "queue", "now"]), ...live.messages.map((text) => el("p", { class: "muted" }, text))),
      section("State", table(live.rows.map(([label, text]) => [el("span", { class: "muted" }, label), text])))),
    operatorPart(name, live.operator),
  ].filter(Boolean);
}

function operatorPart(name, operator) {
  if (!operator) return null;
  const send = async (command) => {
    try {
      await ask(`/api/operate/${path(name)}`, { command });
      tell(`${command} was sent`);
    } catch (error) {
      tell(error.message, true);
    }
  };
  const buttons = ["start", "success", "failure", "discard", "pause"].map((command) => el("button", {
    "data-command": command, disabled: !operator.commands.includes(command), onclick: () => send(command) }, command));
  return section("Operator", el("p", { id: "operator" }, operator.message),
    operator.by_web ? el("div", { class: "row" }, ...buttons)
      : el("p", { class: "muted" }, "This run does not accept commands from pages. Add web to operator.sources to allow them."),
    el("p", { class: "muted" }, STOP));
}

function successPart(run) {
  const names = Object.keys(run.success);
  if (!names.length) return section("Success", el("p", { class: "muted" }, "No episode has been labeled yet."));
  const bandOf = names.indexOf("corrected by the audit");
  return section("Success", el("div", { class: "card" }, legend(names),
    chart(Object.values(run.success), { range: [0, 1], band: bandOf < 0 ? [] : run.band, bandOf, dashed: names.indexOf("evaluation seeds, by the judge"), markers: run.markers, unit: percent, width: chartWidth() })),
    run.about ? el("p", { class: "muted" }, run.about) : "");
}

function restParts(name, run) {
  const events = run.events.map((event) => [el("span", { class: "muted" }, when(event.time)),
    el("span", { class: ["alarm", "error", "warning"].includes(event.kind) ? "warn" : "" }, event.message)]);
  const versions = run.versions.map((one) => [`v${one.number}`, one.promoted ? "promoted" : "rejected", one.message]);
  const videos = run.videos.map((which) => el("figure", {}, el("video", { src: `/video/${which}/${path(name)}`, controls: true, muted: true, loop: true, preload: "metadata" }),
    el("figcaption", {}, `The ${which} policy`)));
  const numbers = Object.entries(run.latest).map(([metric, value]) => [el("span", { class: "muted" }, metric), short(value)]);
  return [
    videos.length ? section("Videos", el("div", { class: "clips" }, ...videos)) : null,
    versions.length ? section("Judge versions", table(versions)) : null,
    events.length ? section("Events", table(events)) : null,
    el("div", { class: "groups" }, ...Object.entries(run.groups).map(([title, curves]) => group(title, Object.entries(curves)))),
    section("Latest numbers", el("details", {}, el("summary", {}, count(numbers.length, "metric")), table(numbers))),
    run.live?.operator ? null : el("p", { class: "muted" }, STOP),
  ].filter(Boolean);
}

// Which run is best, by the most trustworthy success that all of them have.
function comparison(runs, total) {
  if (!runs.length) {
    return { result: "No run is chosen.", why: `These folders have ${count(total, "run")}.`, advice: total ? "Choose two or more runs" : "Start a run", command: "", tone: "open" };
  }
  const kind = TRUSTED.find((one) => runs.every((run) => run.success[one]));
  if (!kind) return { result: "These runs cannot be compared.", why: "No kind of success was measured in all of them.", advice: "Choose runs with the same kind of judge", command: "", tone: "open" };
  const last = (run) => run.success[kind].at(-1)[1];
  const [best, ...others] = runs.toSorted((a, b) => last(b) - last(a));
  const why = [best, ...others].map((run) => `${run.name} ${percent(last(run))} after ${run.step.toLocaleString("en")} steps`).join(", ");
  return { ...best.verdict, result: others.length ? `Best: ${best.name}, ${percent(last(best))} success.` : `${best.name}: ${percent(last(best))} success.`, why: `Success (${kind}): ${why}.` };
}

// Small charts under a heading, as wide as they are many.
function group(title, curves) {
  const node = section(title, el("div", { class: "charts" }, ...curves.map(([metric, points]) =>
    el("div", { class: "card" }, el("div", { class: "muted" }, metric), chart([points], { width: 400 })))));
  node.style.flexBasis = `${curves.length * 400}px`;
  return node;
}

export async function comparePage({ page, crumbs, query }) {
  crumbs.append("Compare runs");
  const all = (await ask("/api/library")).filter((item) => item.kind === "run");
  const chosen = query.getAll("run");
  const choose = () => {
    const names = [...page.querySelectorAll("input:checked")].map((box) => ["run", box.value]);
    location.hash = `#/compare?${new URLSearchParams(names)}`;
  };
  const boxes = all.map((item) => el("label", {}, el("input", { type: "checkbox", value: item.name, checked: chosen.includes(item.name), onchange: choose }), ` ${item.name}`));
  const runs = chosen.length ? await ask(`/api/compare?${new URLSearchParams(chosen.map((name) => ["run", name]))}`) : [];
  page.append(el("h1", {}, "Compare runs"), verdict(comparison(runs, all.length)), el("div", { class: "row" }, ...boxes));
  if (!runs.length) return;
  const kinds = [...new Set(runs.flatMap((run) => Object.keys(run.success)))];
  const last = (run, kind) => (run.success[kind] ? percent(run.success[kind].at(-1)[1]) : "-");
  page.append(table(runs.map((run) => [el("a", { href: link("run", run.name) }, run.name), run.verdict.result, run.learner, run.judge,
    run.step.toLocaleString("en"), clock(run.elapsed_s), ...kinds.map((kind) => last(run, kind))]),
  ["run", "result", "learner", "judge", "steps", "time", ...kinds.map((kind) => `success: ${kind}`)], "stacked"));
  for (const about of new Set(runs.map((run) => run.about).filter(Boolean))) {  // rates of runs may be of other episodes
    const having = runs.filter((run) => run.about === about).map((run) => run.name);
    page.append(el("p", { class: "muted" }, having.length === runs.length ? about : `${having.join(", ")}: ${about}`));
  }
  page.append(el("div", { class: "halves" }, ...kinds.map((kind) => {
    const having = runs.filter((run) => run.success[kind]), width = kinds.length > 1 ? Math.min(600, chartWidth()) : chartWidth();
    return section(`Success: ${kind}`, el("div", { class: "card" }, legend(having.map((run) => run.name)),
      chart(having.map((run) => run.success[kind]), { range: [0, 1], unit: percent, width })));
  })));
}
