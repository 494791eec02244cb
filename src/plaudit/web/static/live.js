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

function showWords({ words = "live", keys = [], hint = "", phase = "episode", step = 0 }) {
  const past = phase !== "episode";
  part("words").textContent = words || "getting ready";
  part("words").classList.toggle("warn", phase === "held");
  part("keys").replaceChildren(...keys.map(([key, command]) => el("span", {}, el("kbd", {}, key), ` ${command}`)));
  part("hint").textContent = hint || (step === null ? "Frames appear when the first episode begins."
    : past ? "These are the last frames of the previous episode." : "");
  part("hint").classList.toggle("muted", step === null || past);
  part("cameras").classList.toggle("past", past);
}

async function follow() {
  const state = await ask("/live");
  part("robot").textContent = state.robot;
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
    showWords({ words: "not connected", hint: "The command has ended, or the network is down. This page tries again.", phase: "lost" });
  }
  await pause;
}
