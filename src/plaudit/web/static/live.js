// The live view of `plaudit record` and `plaudit run`: the newest frame of each camera, ten times a second.

import { ask, el, tell } from "./dom.js";
import "./theme.js";

const PERIOD_MS = 100;
const part = (id) => document.getElementById(id);
const figures = new Map(); // camera -> its image and its caption
let newest = ""; // the frames that are shown

function figure(camera) {
  const image = el("img", { alt: camera }), caption = el("figcaption");
  part("cameras").append(el("figure", {}, image, caption));
  return { image, caption };
}

async function showFrames({ cameras, episode, step }) {
  newest = `${episode}-${step}`;
  await Promise.all(cameras.map(async (camera) => {
    if (!figures.has(camera)) figures.set(camera, figure(camera));
    const { image, caption } = figures.get(camera);
    image.src = `/frame/${encodeURIComponent(camera)}?${newest}`;
    await image.decode().catch(() => {}); // a slow network gets fewer frames, and no queue of them
    caption.textContent = `${camera}, step ${step}`;
  }));
}

function showWords({ robot, words, keys, hint, phase, step }) {
  part("robot").textContent = robot;
  part("words").textContent = words || "getting ready";
  part("words").classList.toggle("warn", phase === "held");
  part("keys").replaceChildren(...(keys ?? []).map(([key, command]) => el("span", {}, el("kbd", {}, key), ` ${command}`)));
  part("hint").textContent = hint || (step === null ? "The cameras appear when the first episode begins." : "");
  part("hint").classList.toggle("warn", Boolean(hint));
  part("cameras").classList.toggle("past", phase !== "episode");
}

async function follow() {
  const state = await ask("/live");
  showWords(state);
  if (state.step !== null && newest !== `${state.episode}-${state.step}`) await showFrames(state);
}

addEventListener("keydown", (event) => {
  if (event.key.length === 1 && !event.ctrlKey && !event.metaKey) tell("Keys work in the terminal, not on this page.");
});
for (;;) {
  const pause = new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  try {
    await follow();
  } catch {
    part("words").textContent = "ended";
    part("keys").replaceChildren();
  }
  await pause;
}
