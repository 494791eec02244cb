// The router: an address like #/episodes/NAME shows a page. A page returns a function that ends it, or nothing.

import { ask, el, link, tell } from "./dom.js";
import { episodePage } from "./episode.js";
import { episodesPage } from "./episodes.js";
import { judgePage, runPage } from "./runs.js";
import { labelPage } from "./label.js";

const PAGES = { episodes: episodesPage, episode: episodePage, label: labelPage, run: runPage, judge: judgePage };
let leave = null;
let visit = 0;

async function show() {
  const number = ++visit;
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
  try {
    const make = PAGES[kind] ?? libraryPage;
    const ends = await make({ page: shown, crumbs, name, rest, query: new URLSearchParams(query) });
    if (number !== visit) ends?.();
    else leave = ends ?? null;
  } catch (error) {
    shown.append(el("p", { class: "warn" }, error.message), el("p", {}, el("a", { href: "#/" }, "Back to the start")));
  }
}

async function libraryPage({ page }) {
  const items = await ask("/api/library");
  const titles = { store: "Episodes", run: "Runs", judge: "Judges" };
  for (const kind of ["run", "store", "judge"]) {
    const own = items.filter((item) => item.kind === kind);
    if (!own.length) continue;
    const pages = { store: "episodes", run: "run", judge: "judge" };
    page.append(el("h2", {}, titles[kind]), el("div", { class: "items" }, ...own.map((item) => card(item, pages[kind]))));
  }
  if (!items.length) {
    page.append(
      el("h1", {}, "Nothing to show yet"),
      el("p", {}, "These folders have no store, run or judge. Record or import episodes, then reload this page:"),
      el("p", {}, el("kbd", {}, "plaudit record demos --env lift")),
      el("p", {}, el("kbd", {}, "plaudit data import path/to/lerobot_dataset episodes")),
    );
  }
}

function card(item, page) {
  const facts = item.error ?? (item.episodes === undefined ? "" : `${item.episodes} episodes, ${item.labeled} labeled`);
  return el("a", { class: "card", href: link(page, item.name) }, el("b", {}, item.name),
    el("div", { class: item.error ? "warn" : "muted" }, facts));
}

function setTheme(dark) {
  document.documentElement.classList.toggle("dark", dark);
  localStorage.setItem("theme", dark ? "dark" : "light");
}

const chosen = localStorage.getItem("theme");
setTheme(chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
document.getElementById("theme").addEventListener("click", () =>
  setTheme(!document.documentElement.classList.contains("dark")));
addEventListener("hashchange", show);
show();
