// The router: an address like #/episodes/NAME shows a page. A page returns a function that ends it, or nothing.

import { ask, breakable, count, el, link, path, section, tell, verdict } from "./dom.js";
import { episodePage } from "./episode.js";
import { episodesPage } from "./episodes.js";
import { judgePage, trainingPage } from "./judges.js";
import { labelPage } from "./label.js";
import { comparePage, runPage } from "./runs.js";
import { tasksPart } from "./tasks.js";
import "./theme.js";

const PAGES = {
  episodes: episodesPage, episode: episodePage, label: labelPage, run: runPage, compare: comparePage,
  judge: judgePage, training: trainingPage,
};
let leave = null;
let visit = 0;

// The control that is used now, to be found again on the page that its change leads to.
function focused() {
  const node = document.activeElement;
  if (!node.matches("#page :is(select, input)")) return null;
  const name = node.getAttribute("aria-label");
  return name ? `${node.localName}[aria-label="${CSS.escape(name)}"]` : `input[value="${CSS.escape(node.value)}"]`;
}

async function show() {
  const number = ++visit, control = focused();
  if (leave) leave();
  leave = null;
  tell("");
  const [address, query] = location.hash.slice(2).split("?");
  const [kind, name, ...rest] = address.split("/").map(decodeURIComponent);
  const page = document.getElementById("page");
  const crumbs = document.getElementById("crumbs");
  crumbs.replaceChildren();
  document.title = name ? `${name} · Plaudit` : "Plaudit";
  const shown = el("div");
  page.replaceChildren(shown);
  page.setAttribute("aria-busy", "true");
  try {
    const make = PAGES[kind] ?? libraryPage;
    const ends = await make({ page: shown, crumbs, name, rest, query: new URLSearchParams(query) });
    if (number !== visit) ends?.();
    else leave = ends ?? null;
    if (control && document.activeElement === document.body) shown.querySelector(control)?.focus();
  } catch (error) {
    const why = `${error.message[0].toUpperCase()}${error.message.slice(1)}.`;
    shown.prepend(verdict({ result: "This page cannot be shown.", why, advice: "Choose another one from the overview", tone: "bad" }),
      el("p", {}, el("a", { class: "button", href: "#/" }, "Overview")));
  }
  if (number === visit) page.removeAttribute("aria-busy");
}

const KINDS = {
  run: ["Runs", "run"], training: ["Judges in training", "training"], store: ["Episodes", "episodes"],
  judge: ["Judges", "judge"], report: ["Other reports", ""],
};

async function libraryPage({ page }) {
  const items = await ask("/api/library");
  const of = (kind) => items.filter((item) => item.kind === kind);
  page.append(el("h1", {}, "Overview"), verdict(overview(of)));
  for (const [kind, [title, address]] of Object.entries(KINDS)) {
    if (!of(kind).length) continue;
    const compare = kind === "run" && of(kind).length > 1 ? el("p", {}, el("a", { class: "button", href: "#/compare" }, "Compare runs")) : "";
    page.append(section(title, el("div", { class: "items" }, ...of(kind).map((item) => card(item, address))), compare));
  }
  const again = () => dispatchEvent(new HashChangeEvent("hashchange"));
  return tasksPart(page, items, again);
}

// The three lines of the first page: what there is, what is missing, and what to do next.
function overview(of) {
  const stores = of("store"), sum = (key) => stores.reduce((total, item) => total + (item[key] ?? 0), 0);
  const episodes = sum("episodes"), labeled = sum("labeled");
  const next = (advice, command = "") => ({ advice, command });
  const most = stores.toSorted((a, b) => (b.episodes - b.labeled || 0) - (a.episodes - a.labeled || 0))[0];
  if (!of("run").length && !of("judge").length && !episodes) {
    return of("dataset").length
      ? { result: "This data set is not imported yet.", why: "Pages show episodes of stores. Importing does not change the data set.", ...next("Import it below"), tone: "open" }
      : { result: "Nothing to show yet.", why: "The folders contain no store, run or judge.", ...next("Record episodes, or import a data set, and reload this page", "plaudit data import path/to/lerobot_dataset episodes"), tone: "open" };
  }
  const live = of("run").filter((run) => run.live).length;
  const result = `${[live && count(live, "live run"), count(of("run").length, "run"), count(of("judge").length, "judge"), count(episodes, "episode")].filter(Boolean).join(", ")}.`;
  const why = `${labeled.toLocaleString("en")} of ${count(episodes, "episode")} ${labeled === 1 ? "is" : "are"} labeled.`;
  if (labeled < episodes) return { result, why, ...next(`Label ${count(most.episodes - most.labeled, "more episode")} of ${most.name}`), tone: "open" };
  return { result, why, ...next(of("judge").length ? "Open a judge or a run below" : "Train a judge on the labels below"), tone: "open" };
}

function card(item, address) {
  const facts = item.kind === "report" ? "opens in a new tab" : item.error ?? item.verdict ?? (item.episodes === undefined ? "is being trained" : `${count(item.episodes, "episode")}, ${item.labeled.toLocaleString("en")} labeled`);
  const to = item.kind === "report" ? { href: `/report/report/${path(item.name)}`, target: "_blank" } : { href: link(address, item.name) };
  return el("a", { class: `card ${item.tone ?? ""}`, ...to }, el("b", {}, ...breakable(item.name), item.live ? el("span", { class: "live" }, "live") : null),
    el("div", { class: item.error ? "warn" : "muted" }, facts));
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("page").focus();
});
addEventListener("hashchange", show);
show();
