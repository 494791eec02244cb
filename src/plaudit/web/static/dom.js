// Small helpers that every page uses. Text from files is always set as text, never as HTML.

export function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export class ServerError extends Error {}

// The answer of the server, or a ServerError with its message.
export async function ask(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json", "x-plaudit": "1" },
  };
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new ServerError("the server does not answer; trying again");
  }
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new ServerError(answer.error ?? `the server answered ${response.status}`);
  return answer;
}

// The three lines that every page begins with.
export function verdict({ result, why, advice, command, tone }) {
  const next = [advice, command ? ":" : ".", command ? el("code", {}, command) : null];
  return el("dl", { class: `card verdict ${tone}` }, el("dt", {}, "Result"), el("dd", {}, result),
    el("dt", {}, "Why"), el("dd", {}, why), el("dt", {}, "Next"), el("dd", {}, ...next));
}

// Rows of cells; a cell is text or a node. style: "stacked" shows each row as a list on a phone
export function table(rows, header = [], style = "") {
  const line = (tag, cells) => el("tr", {}, ...cells.map((cell, number) => el(tag, { "data-head": header[number] }, cell)));
  return el("div", { class: `scroll ${style}` }, el("table", {}, header.length ? el("thead", {}, line("th", header)) : null,
    el("tbody", {}, ...rows.map((row) => line("td", row)))));
}

export function section(title, ...children) {
  return el("section", {}, el("h2", {}, title), ...children);
}

export function select(label, options, value, change) {
  return el("select", { "aria-label": label, onchange: (event) => change(event.target.value) },
    ...Object.entries(options).map(([key, text]) => el("option", { value: key, selected: key === value }, text)));
}

// Whether a key is meant for a form and not for the page.
export const isTyping = (event) => event.altKey || event.metaKey
  || (event.target.matches("input, select, textarea") && event.target.type !== "range")
  || (event.target.matches("button, a, summary") && [" ", "Enter"].includes(event.key));

export function tell(text, isError = false) {
  const notice = document.getElementById("notice");
  notice.replaceChildren(el("span", {}, text)); // a new node, which fades anew
  notice.className = isError ? "error" : "";
}

// A name of a folder, which a narrow page breaks after a slash.
export const breakable = (name) => name.split("/").flatMap((part, number) => (number ? ["/", el("wbr"), part] : [part]));

export const path = (name) => name.split("/").map(encodeURIComponent).join("/");
export const link = (kind, name, ...rest) => `#/${[kind, encodeURIComponent(name), ...rest].join("/")}`;
export const short = (value) => (value === null ? "-" : typeof value === "number" ? Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 }) : `${value}`);
export const percent = (value) => `${Math.round(100 * value)}%`;
export const when = (seconds) => (typeof seconds === "number" ? new Date(1000 * seconds).toLocaleString() : "");
export const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

export function frameUrl(store, id, storeId, camera, frame, width) {
  const size = width ? `&w=${width}` : "";
  return `/frame/${id}/${frame}/${encodeURIComponent(camera)}/${path(store)}?s=${encodeURIComponent(storeId)}${size}`;
}

export const clipUrl = (store, id, storeId, camera) =>
  `/clip/${id}/${encodeURIComponent(camera)}/${path(store)}?s=${encodeURIComponent(storeId)}`;

export function clock(seconds) {
  const s = Math.round(seconds);
  return `${Math.floor(s / 3600)}:${String(Math.floor(s / 60) % 60).padStart(2, "0")}:${String(s % 60).padStart(2, "0")}`;
}
