// One episode: all cameras on one timeline with labels, scores of every judge, states and actions.

import { ask, el, isTyping, link, path, section, table, verdict, when } from "./dom.js";
import { Cameras, judgePlot, Player, Plot, Strip } from "./viewer.js";

export async function episodePage({ page, crumbs, name, rest, query }) {
  const id = Number(rest[0]);
  const episode = await ask(`/api/episode/${id}/${path(name)}`);
  const count = episode.steps + 1;
  crumbs.append(el("a", { href: link("episodes", name) }, name), ` / ${id}`);
  const cameras = new Cameras(name, id, episode.store, episode.cameras);
  const parts = [];
  let frame = 0;
  const seek = (to) => {
    frame = Math.min(count - 1, Math.max(0, Math.round(to)));
    const label = episode.labels?.[frame] ?? null;
    cameras.show(frame, count, label === null ? "" : label ? "success" : "failure");
    parts.forEach((part) => part.show(frame));
    slider.value = frame;
    place.textContent = `frame ${frame} of ${count - 1}, ${(frame / episode.fps).toFixed(2)} s`;
  };
  const byFraction = (fraction) => seek(fraction * (count - 1));
  const slider = el("input", { class: "range", type: "range", min: 0, max: count - 1, "aria-label": "frame",
    oninput: (event) => seek(Number(event.target.value)) });
  const place = el("span", { class: "muted" });
  const player = new Player(seek);
  const add = (part) => { parts.push(part); return part.node; };

  const side = el("div", {}, section("Label history", history(episode)), section("Facts", facts(episode)));
  const main = el("div", {}, cameras.node, slider,
    el("div", { class: "row" },
      el("button", { onclick: () => player.toggle(frame, count, episode.fps) }, "Play or pause ", el("kbd", {}, "Space")),
      place, el("span", { class: "grow" }),
      episode.previous === null ? null : el("a", { href: link("episode", name, episode.previous) }, "← Previous"),
      episode.next === null ? null : el("a", { href: link("episode", name, episode.next) }, "Next →"),
      el("a", { class: "button", href: `${link("label", name)}?open=${id}` }, "Label"), el("kbd", {}, "L")));
  if (episode.labels) {
    const strip = new Strip(byFraction);
    strip.draw(episode.labels, episode.by_person);
    main.append(el("h2", {}, "Label in use"), add(strip),
      episode.by_person.length ? el("p", { class: "muted" }, "Marked below: steps with corrections by a person.") : "");
  }
  episode.traces.filter((one) => one.probs).forEach((trace) => main.append(add(judgePlot(trace, byFraction))));
  const progress = episode.traces.filter((one) => one.progress);
  if (progress.length) {
    main.append(add(new Plot("task progress", progress.map((one) => one.progress), { range: [0, 1], names: progress.map((one) => one.source), seek: byFraction })));
  }
  if (episode.rewards.some((value) => value !== null)) {
    // A reward belongs to the frame that it is given for, one after its action.
    main.append(add(new Plot("reward", [[null, ...episode.rewards]], { seek: byFraction })));
  }
  if (episode.state.length) main.append(add(new Plot("state", episode.state, { seek: byFraction })));
  if (episode.actions.length) main.append(add(new Plot("actions", episode.actions, { seek: byFraction })));
  page.append(el("h1", {}, episode.task || `Episode ${id}`), verdict(episode.verdict), el("div", { class: "two" }, main, side));
  seek(Number(query.get("frame") ?? 0));

  const keys = (event) => {
    if (isTyping(event) || event.ctrlKey) return;
    const step = event.shiftKey ? 10 : 1;
    if (event.key === "ArrowRight") seek(frame + step);
    else if (event.key === "ArrowLeft") seek(frame - step);
    else if (event.key === "Home") seek(0);
    else if (event.key === "End") seek(count - 1);
    else if (event.key === " ") player.toggle(frame, count, episode.fps);
    else if (event.key === "PageDown" && episode.next !== null) location.hash = link("episode", name, episode.next);
    else if (event.key === "PageUp" && episode.previous !== null) location.hash = link("episode", name, episode.previous);
    else if (event.key === "l") location.hash = `${link("label", name)}?open=${id}`;
    else return;
    event.preventDefault();
  };
  addEventListener("keydown", keys);
  return () => { removeEventListener("keydown", keys); player.pause(); };
}

function history(episode) {
  if (!episode.history.length) return el("p", { class: "muted" }, "This episode has no label.");
  return table(episode.history.toReversed().map((version) => [
    el("span", {}, el(version.counts ? "b" : "span", {}, version.source), version.counts ? " (counts)" : ""),
    el("span", {}, version.summary, el("div", { class: "muted" }, [version.remark, when(version.time)].filter(Boolean).join(", ")))]));
}

function facts(episode) {
  const rows = { steps: episode.steps, Hz: episode.fps, robot: episode.robot, terminated: episode.terminated, ...episode.meta };
  return table(Object.entries(rows).filter(([, value]) => value !== "").map(([name, value]) => [el("span", { class: "muted" }, name), `${value}`]));
}
