// Elements from words: what others wrote (a config, a log) is only ever text.

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "value") made.value = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export function card(title, ...children) {
  return element("section", { class: "card" }, title ? element("h2", {}, title) : null, ...children);
}

/** A table of facts: name, value, and what stands small beneath the value. */
export function facts(rows) {
  const lines = rows.map((row) =>
    element("tr", {}, element("th", { scope: "row" }, row.name),
      element("td", {}, row.value, row.detail ? element("small", {}, row.detail) : null)));
  return element("table", { class: "facts" }, element("tbody", {}, lines));
}

/** A table with heads; a cell is text or an element. */
export function table(heads, rows, caption) {
  const head = element("tr", {}, heads.map((name) => element("th", { scope: "col" }, name)));
  const body = rows.map(([first, ...rest]) =>
    element("tr", {}, element("th", { scope: "row" }, first), rest.map((cell) => element("td", {}, cell))));
  return element("table", {}, element("caption", { class: "unseen" }, caption),
    element("thead", {}, head), element("tbody", {}, body));
}

/** A table that may be wider than the window: it scrolls by itself, also by keyboard. */
export function scrolling(title, made) {
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, made);
}

/** A line to paste, with a button that copies it. */
export function command(line, label) {
  return element("div", { class: "command" }, element("code", {}, line),
    element("button", { type: "button", "aria-label": `Copy ${label}`, onclick: () => copied(line, label) }, "Copy"));
}

export async function copied(text, label) {
  await navigator.clipboard.writeText(text);
  say(`${label} copied.`);
}

/** The colour of a part of the memory, as the style names it. */
export const colourOf = (kind) => ({ "KV cache": "cache", "left out": "left", "CUDA graphs": "graphs" })[kind] ?? kind;

/** To a screen reader. */
export function say(words) {
  document.getElementById("said").textContent = words;
}

export function mistake(answer) {
  return element("div", { class: "mistake", role: "alert" }, element("p", {}, answer.error),
    answer.hint ? element("p", { class: "quiet" }, `Hint: ${answer.hint}`) : null);
}

/** ``name`` shut, or as a reader left it: what is redrawn stays open. */
const opened = new Set();
export function foldable(name, ...children) {
  return element("details", {
    class: "card", open: opened.has(name),
    ontoggle: (event) => (event.target.open ? opened.add(name) : opened.delete(name)),
  }, element("summary", {}, name), ...children);
}
