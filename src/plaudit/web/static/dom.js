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
    throw new ServerError("the server does not answer; this page tries again");
  }
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new ServerError(answer.error ?? `the server answered ${response.status}`);
  return answer;
}

export function tell(text, isError = false) {
  const notice = document.getElementById("notice");
  notice.textContent = text;
  notice.className = isError ? "error" : "";
}

export const path = (name) => name.split("/").map(encodeURIComponent).join("/");
export const link = (kind, name, ...rest) => `#/${[kind, encodeURIComponent(name), ...rest].join("/")}`;
export const percent = (value) => `${Math.round(100 * value)}%`;
export const when = (seconds) => new Date(1000 * seconds).toLocaleString();

export function frameUrl(store, id, storeId, camera, frame, width) {
  const size = width ? `&w=${width}` : "";
  return `/frame/${id}/${frame}/${encodeURIComponent(camera)}/${path(store)}?s=${encodeURIComponent(storeId)}${size}`;
}

export function clock(seconds) {
  const s = Math.round(seconds);
  return `${Math.floor(s / 3600)}:${String(Math.floor(s / 60) % 60).padStart(2, "0")}:${String(s % 60).padStart(2, "0")}`;
}
