// The grid of a store's episodes, with filters in the address so that a view can be shared.

import { ask, el, frameUrl, link, path } from "./dom.js";

const COUNT = 60;
const OUTCOMES = ["", "success", "failure", "unlabeled", "excluded", "withheld"];

export async function episodesPage({ page, crumbs, name, query }) {
  crumbs.append(name);
  const wanted = new URLSearchParams(query);
  if (!wanted.has("count")) wanted.set("count", COUNT);
  const answer = await ask(`/api/episodes/${path(name)}?${wanted}`);
  page.append(
    el("div", { class: "row" }, el("h1", { class: "grow" }, name),
      el("a", { href: link("label", name) }, el("button", {}, "Label these episodes"))),
    filters(name, query),
    el("p", { class: "muted" }, `${answer.found} of ${answer.total} episodes`),
  );
  if (!answer.found) {
    page.append(el("p", {}, answer.total ? "No episode fits these filters." : "There are no episodes yet. They appear here as they are recorded."));
    return;
  }
  page.append(el("div", { class: "grid" }, ...answer.episodes.map((row) => tile(name, answer.store, row))), pager(name, query, answer));
}

function tile(name, store, row) {
  const picture = row.camera === null ? el("span", { class: "muted" }, "no camera")
    : el("img", { loading: "lazy", alt: "", src: frameUrl(name, row.id, store, row.camera, row.steps, 160) });
  const marks = [row.disagree && "judges disagree", row.ood && "OOD", row.operator && `operator: ${row.operator}`];
  const more = marks.filter(Boolean).join(", ") || row.source || `${(row.steps / row.fps).toFixed(1)} s`;
  return el("a", { class: `tile ${row.outcome}`, href: link("episode", name, row.id), title: row.task },
    el("div", { class: "picture" }, picture),
    el("div", { class: "text" }, el("div", {}, el("b", {}, `${row.id}`), ` ${row.outcome}`), el("div", { class: "muted" }, more)));
}

function filters(name, query) {
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
  return el("div", { class: "row" },
    choose("outcome", "outcome", OUTCOMES.map((word) => [word, word || "any outcome"])),
    choose("disagree", "agreement", [["", "agree or not"], ["1", "judges disagree"]]),
    choose("ood", "distribution", [["", "any distribution"], ["1", "out of distribution"]]),
    choose("order", "order", [["", "newest first"], ["oldest", "oldest first"]]),
    text("source", "labeled by"), text("task", "task"), text("operator", "operator mark"),
    text("weights", "policy version"), text("id", "episode"));
}

function pager(name, query, answer) {
  const count = Number(query.get("count") ?? COUNT);
  const to = (first) => {
    const changed = new URLSearchParams(query);
    changed.set("first", first);
    return `${link("episodes", name)}?${changed}`;
  };
  const parts = [];
  if (answer.first > 0) parts.push(el("a", { href: to(Math.max(0, answer.first - count)) }, "← Earlier page"));
  if (answer.first + count < answer.found) parts.push(el("a", { href: to(answer.first + count) }, "Next page →"));
  const last = Math.min(answer.first + count, answer.found);
  return el("p", { class: "row" }, el("span", { class: "muted" }, `${answer.first + 1} to ${last}`), ...parts);
}
