// The live view of `plaudit record` and `plaudit run`: the newest frame of each camera, ten times a second.

import { ask, el, tell } from "./dom.js";
import "./theme.js";

const PERIOD_MS = 100, SILENT_S = 2;
const part = (id) => document.getElementById(id);
const figures = new Map(); // camera -> its image and its caption
let newest = ""; // the frames that are shown

function figure(camera) {
  const image = el("img", { alt: camera }), caption = el("figcaption");
  part("cameras").append(el("figure", {}, image, caption));
  return { image, caption };
}

// Between two episodes the frames have an age instead of a step, and change all the time.
const nameOf = ({ episode, step, age_s }) => (age_s === null ? `${episode}-${step}` : `${episode}-${Date.now()}`);

async function showFrames({ cameras, step, age_s }, name) {
  newest = name;
  await Promise.all(cameras.map(async (camera) => {
    if (!figures.has(camera)) figures.set(camera, figure(camera));
    const { image, caption } = figures.get(camera);
    image.src = `/frame/${encodeURIComponent(camera)}?${newest}`;
    await image.decode().catch(() => {}); // a slow network gets fewer frames, and no queue of them
    caption.textContent = age_s === null ? `${camera}, step ${step}` : camera;
  }));
}

function showWords({ words = "live", keys = [], hint = "", phase = "episode", step = 0, age_s = null }) {
  const past = phase !== "episode" && !(age_s !== null && age_s < SILENT_S);
  part("words").textContent = words || "getting ready";
  part("words").classList.toggle("warn", phase === "held");
  part("keys").replaceChildren(...keys.map(([key, command]) => el("span", {}, el("kbd", {}, key), ` ${command}`)));
  part("hint").textContent = hint || (step === null ? "Frames appear when the first episode begins."
    : !past ? "" : age_s === null ? "These are the last frames of the previous episode." : `These frames are ${Math.round(age_s)} s old.`);
  part("hint").classList.toggle("muted", step === null || past);
  part("cameras").classList.toggle("past", past);
}

async function follow() {
  const state = await ask("/live");
  part("robot").textContent = state.robot;
  showWords(state);
  const name = nameOf(state);
  if (state.step !== null && newest !== name) await showFrames(state, name);
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
