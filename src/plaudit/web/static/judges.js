// Judges: the verdict, what another threshold would change, the exam, the worst frames, and training while it happens.

import { chart, chartWidth, legend } from "./charts.js";
import { ask, count, el, frameUrl, link, path, percent, section, select, short, table, verdict } from "./dom.js";

const EVERY_MS = 2000;

export async function judgePage({ page, crumbs, name }) {
  crumbs.append(name);
  const [judge, items] = await Promise.all([ask(`/api/judge/${path(name)}`), ask("/api/library")]);
  const report = judge.report ? el("a", { class: "button", href: `/report/judge/${path(name)}`, target: "_blank" }, "Report") : null;
  const stores = items.filter((item) => item.kind === "store" && item.labeled);
  page.append(el("div", { class: "row" }, el("h1", { class: "grow" }, name), report), verdict(judge.verdict),
    whatIfPart(judge, stores), ...examPart(judge), curvePart(judge.curve),
    section("Scores of held-out frames", el("details", {}, el("summary", {}, `rule: ${judge.rule ?? "unknown"}`),
      table(Object.entries(judge.scores).map(([key, value]) => [el("span", { class: "muted" }, key), short(value)])))));
}

// A slider of the threshold, over held-out episodes or over a store that this kind of judge has labeled.
function whatIfPart(judge, stores) {
  const body = el("div"), options = { "": "held-out training episodes" };
  stores.forEach((item) => { options[item.name] = `classifier labels in ${item.name}`; });
  const show = async (store) => {
    try {
      const data = store ? await ask(`/api/what_if/${path(store)}?source=classifier`) : judge.what_if;
      body.replaceChildren(...(data ? slider(data, store) : [el("p", { class: "muted" }, "This judge has no held-out episodes. Choose a store that it labeled.")]));
    } catch (error) {
      body.replaceChildren(el("p", { class: "warn" }, error.message));
    }
  };
  show("");
  return section("Effect of another threshold", el("p", { class: "row" }, select("episodes", options, "", show)), body);
}

function slider(data, store) {
  const success = (episode, threshold) => episode.score >= threshold;
  const summary = el("p", { id: "what-if", role: "status" }), list = el("div", { class: "grid" }), counts = el("div");
  const episodes = count(data.episodes.length, "episode");
  const update = (threshold) => {
    const matching = (target, predicted) => data.episodes.filter((one) => one.target === target && success(one, threshold) === predicted).length;
    const changed = data.episodes.filter((one) => success(one, threshold) !== success(one, data.threshold));
    const up = changed.filter((one) => success(one, threshold)).length;
    summary.replaceChildren(el("b", {}, `Threshold ${threshold.toFixed(3)}: `), changed.length
      ? `of ${episodes}, ${up} would become successes and ${changed.length - up} would become failures.`
      : `no change in ${episodes}.`);
    counts.replaceChildren(table([["success", `${matching(true, true)}`, `${matching(true, false)}`], ["failure", `${matching(false, true)}`, `${matching(false, false)}`]],
      [data.reference, "judge: success", "judge: failure"]));
    list.replaceChildren(...changed.slice(0, 24).map((one) => changedTile(one, store, success(one, threshold))));
  };
  const input = el("input", { class: "range", type: "range", min: 0, max: 1, step: 0.005, value: data.threshold, "aria-label": "threshold", oninput: (event) => update(Number(event.target.value)) });
  const reset = el("button", { onclick: () => { input.value = data.threshold; update(data.threshold); } }, `Back to ${short(data.threshold)}`);
  update(data.threshold);
  const note = data.exact ? null : el("p", { class: "muted" }, "This judge uses one cutoff per episode, so the numbers are approximate.");
  const worst = (data.worst ?? []).length ? [el("h2", {}, "Worst frames"), el("div", { class: "grid" }, ...data.worst.map((one) => worstTile(one, data, store)))] : [];
  return [el("div", { class: "card" }, el("div", { class: "row" }, el("div", { class: "grow" }, input), reset), scores(data), summary, counts, note ?? ""), list, ...worst];
}

// The scores of all episodes as dots on the line of thresholds: successes above, failures below.
function scores(data) {
  const dots = data.episodes.map((one) => {
    const dot = el("i", { class: one.target === null ? "" : one.target ? "success" : "failure", title: `episode ${one.id}: ${one.score}` });
    dot.style.left = `${100 * one.score}%`;
    return dot;
  });
  return el("div", { class: "dots", "aria-hidden": "true" }, ...dots);
}

function changedTile(one, store, becomes) {
  const text = el("div", { class: "text" }, el("b", {}, `episode ${one.id}`), el("div", { class: "muted" }, `${becomes ? "becomes success" : "becomes failure"}, score ${one.score.toFixed(3)}`));
  return store ? el("a", { class: `tile ${becomes ? "success" : "failure"}`, href: link("episode", store, one.id) }, text)
    : el("div", { class: `tile ${becomes ? "success" : "failure"}` }, text);
}

function worstTile(one, data, store) {
  return el("a", { class: `tile ${one.target ? "success" : "failure"}`, href: `${link("episode", store, one.id)}?frame=${one.frame}` },
    el("div", { class: "picture" }, el("img", { loading: "lazy", alt: "", src: frameUrl(store, one.id, data.store, data.cameras[one.id], one.frame, 160) })),
    el("div", { class: "text" }, el("b", {}, one.target ? "success" : "failure"), ` at P ${percent(one.prob)}`, el("div", { class: "muted" }, `episode ${one.id}, frame ${one.frame}`)));
}

function examPart(judge) {
  const exam = judge.certificate;
  if (!exam) return [section("Exam", el("p", {}, "No exam yet. A judge must pass an exam before it is used on a robot."))];
  const share = (value) => (value === null ? "not tried" : `${(100 * value).toFixed(1)}%`);
  const figures = (rows) => table(rows.map(([title, text]) => [el("span", { class: "muted" }, title), text]), ["figure", "value (95% interval)"]);
  const controls = exam.controls.map(([name, frames, rate, most, passed]) => [name, frames.toLocaleString("en"), share(rate), share(most), el("span", { class: passed ? "" : "warn" }, passed ? "passed" : "failed")]);
  return [el("div", { class: "halves" },
    section("Exam", el("p", {}, `${exam.passed ? "Passed" : "Failed"} on ${exam.date}, on ${exam.data}.`), ...exam.problems.map((text) => el("p", { class: "warn" }, text)),
      figures(exam.figures.slice(0, exam.main)), el("details", {}, el("summary", {}, "More figures"), figures(exam.figures.slice(exam.main)))),
    section("Negative controls", el("p", { class: "muted" }, "Episodes that must not be labeled as success."), table(controls, ["control", "frames", "labeled success", "limit", ""])))];
}

function curvePart(epochs) {
  const own = epochs.filter((one) => !one.fold && !one.member);
  if (own.length < 2) return "";
  const lines = ["train_loss", "validation_loss"].map((name) => own.map((one) => [one.epoch, one[name]]));
  return section("Training", el("div", { class: "card" }, legend(["loss on training episodes", "loss on held-out episodes"]), chart(lines, { last: "epochs", width: chartWidth() })));
}

export async function trainingPage({ page, crumbs, name }) {
  crumbs.append(name);
  let timer = null, left = false;
  const draw = async () => {
    const training = await ask(`/api/training/${path(name)}`).catch(() => null);
    if (left) return;
    if (training === null) return void (location.hash = link("judge", name));
    const folds = Math.max(0, ...training.epochs.map((one) => one.fold));
    const state = folds ? `Cross-fitting, fold ${folds}.` : training.epochs.length ? `${count(training.epochs.length, "epoch")} so far.` : "The first epoch is running.";
    page.replaceChildren(el("h1", {}, name), verdict({ result: "Training a judge.", why: state, advice: "Wait: the judge opens when training ends", command: "", tone: "open" }),
      curvePart(training.epochs) || "");
    timer = setTimeout(draw, EVERY_MS);
  };
  await draw();
  return () => { left = true; clearTimeout(timer); };
}
