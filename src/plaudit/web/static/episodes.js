// The grid of a store's episodes, with filters in the address so that a view can be shared.

import { ask, breakable, count, el, frameUrl, link, path, verdict } from "./dom.js";

const COUNT = 60;
const OUTCOMES = ["", "success", "failure", "unlabeled", "excluded", "withheld"];

export async function episodesPage({ page, crumbs, name, query }) {
  crumbs.append(name);
  const wanted = new URLSearchParams(query);
  if (!wanted.has("count")) wanted.set("count", COUNT);
  const answer = await ask(`/api/episodes/${path(name)}?${wanted}`);
  const summary = el("div", { class: "summary" });
  page.append(
    el("div", { class: "row" }, el("h1", { class: "grow" }, ...breakable(name)),
      answer.total ? el("a", { class: "button", href: link("label", name) }, "Label these episodes") : null),
    summary,
  );
  ask(`/api/summary/${path(name)}`).then((lines) => summary.replaceChildren(verdict(lines)), () => {});
  if (answer.total || answer.discarded) page.append(filters(name, query, answer));
  if (!answer.matches) {
    if (answer.total) page.append(el("p", {}, "No episode matches these filters. ", el("a", { href: link("episodes", name) }, "Show all")));
    return;
  }
  page.append(el("p", { class: "muted" }, `${answer.matches.toLocaleString("en")} of ${count(answer.total, "episode")}`));
  page.append(el("div", { class: "grid" }, ...answer.episodes.map((row) => tile(name, answer.store, row))), pager(name, query, answer));
}

function tile(name, store, row) {
  const picture = row.camera === null ? el("span", { class: "muted" }, "no camera")
    : el("img", { loading: "lazy", alt: "", src: frameUrl(name, row.id, store, row.camera, row.steps, 160) });
  const marks = [row.disagree && "judges disagree", row.ood && "OOD", row.operator && `operator: ${row.operator}`];
  const more = [row.source, ...marks].filter(Boolean).join(", ") || `${(row.steps / row.fps).toFixed(1)} s`;
  return el("a", { class: `tile ${row.outcome}`, href: link("episode", name, row.id), title: row.task },
    el("div", { class: "picture" }, picture),
    el("div", { class: "text" }, el("div", {}, el("b", {}, `${row.id}`), ` ${row.outcome}`), el("div", { class: "muted", title: more }, more)));
}

function filters(name, query, answer) {
  const go = (key, value) => {
    const changed = new URLSearchParams(query);
    changed.delete("first");
    value ? changed.set(key, value) : changed.delete(key);
    location.hash = `${link("episodes", name)}?${changed}`;
  };
  const choose = (key, label, options) => el("select", { "aria-label": label, onchange: (e) => go(key, e.target.value) },
    ...options.map(([value, text]) => el("option", { value, selected: (query.get(key) ?? "") === value }, text)));
  const text = (key, label) => el("input", { placeholder: label, "aria-label": label, size: 12, value: query.get(key) ?? "",
    onchange: (e) => go(key, e.target.value.trim()) });
  const more = { source: "labeled by", task: "task", operator: "operator mark", weights: "policy version", id: "episode" };
  return el("div", { class: "row filters" },
    choose("outcome", "outcome", OUTCOMES.map((word) => [word, word || "any outcome"])),
    choose("disagree", "agreement", [["", "any agreement"], ["1", "judges disagree"]]),
    choose("ood", "distribution", [["", "any distribution"], ["1", "out of distribution"]]),
    answer.discarded ? discarded(name, answer.discarded) : null,
    choose("order", "order", [["", "newest first"], ["oldest", "oldest first"]]),
    el("details", { open: Object.keys(more).some((key) => query.get(key)) }, el("summary", {}, "More filters"),
      el("div", { class: "row" }, ...Object.entries(more).map(([key, label]) => text(key, label)))));
}

// Discarded episodes are in a store of their own.
function discarded(name, other) {
  const options = { [name]: other.discarded ? "kept" : "discarded", [other.name]: other.discarded ? "discarded" : "kept" };
  return el("select", { "aria-label": "kept or discarded", onchange: (event) => { location.hash = link("episodes", event.target.value); } },
    ...Object.entries(options).map(([value, text]) => el("option", { value, selected: value === name }, text)));
}

function pager(name, query, answer) {
  const size = Number(query.get("count") ?? COUNT);
  const to = (first) => {
    const changed = new URLSearchParams(query);
    changed.set("first", first);
    return `${link("episodes", name)}?${changed}`;
  };
  const parts = [];
  if (answer.first > 0) parts.push(el("a", { href: to(Math.max(0, answer.first - size)) }, "← Earlier page"));
  if (answer.first + size < answer.matches) parts.push(el("a", { href: to(answer.first + size) }, "Next page →"));
  const last = Math.min(answer.first + size, answer.matches);
  return el("p", { class: "row" }, el("span", { class: "muted" }, `${answer.first + 1} to ${last}`), ...parts);
}
