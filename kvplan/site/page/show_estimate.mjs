// One deployment: the answer first, then where its memory goes, how fast it is, and what would change it.
import { card, colourOf, command, element, facts, foldable, scrolling, table } from "./dom.mjs";

const WORDS = { fits: "Fits", may: "May be refused", not: "Does not fit" };
const percent = (share) => `${100 * share}%`;

/** answer: of the planner. more: {speed, changes, isWaiting, isAlone, onChange}, which come later. */
export function showEstimate(answer, more) {
  const { view } = answer;
  return element("div", { class: "stack" },
    verdict(view),
    more.isAlone ? changesCard(more) : null,
    element("div", { class: "cards" },
      card("How many", facts(view.capacity)),
      speedCard(view, more)),
    card("Commands", command(answer.command, "kvplan's command"),
      answer.launch ? command(answer.launch, "vLLM's command") : null,
      more.tools ?? null),
    cacheCard(view),
    more.isAlone ? details(view) : null);
}

function verdict(view) {
  const { state, headline, sentence, range, warning } = view.verdict;
  return card(null,
    element("div", { class: "head" }, element("h2", { class: "title" }, view.title),
      element("span", { class: `state ${state}` }, WORDS[state])),
    element("div", { class: "verdict" }, element("span", { class: "number" }, headline),
      element("span", { class: "words" }, sentence)),
    element("p", { class: "range" }, range ?? ""),
    warning ? element("p", { class: "warning" }, warning) : null,
    ...view.notes.map((note) => element("p", { class: "warning" }, note)),
    bar(view.bar), legend(view.bar));
}

export function bar({ parts, memory, interval, beyond }) {
  const words = parts.map((part) => `${part.kind} ${part.text}`).join(", ");
  const made = element("div", { class: "bar", role: "img", "aria-label": `Memory of one GPU, ${memory.text}: ${words}` });
  for (const part of parts) {
    const piece = element("div", { class: `part ${colourOf(part.kind)}`, title: `${part.kind}: ${part.text}, ${part.meaning}` });
    piece.style.width = percent(part.share);
    made.append(piece);
  }
  if (interval) {
    const band = element("div", { class: "interval", title: `KV cache in 9 of 10 start-ups: ${interval.text}` });
    band.style.left = percent(interval.low);
    band.style.width = percent(interval.high - interval.low);
    made.append(band);
  }
  if (beyond) {
    const end = element("div", { class: "end", title: `The GPU's ${memory.text} end here` });
    end.style.left = percent(memory.share);
    made.append(end);
  }
  return made;
}

function legend({ parts, interval, memory, beyond }) {
  const rows = parts.map((part) => element("div", {},
    element("dt", { title: part.meaning }, element("span", { class: `swatch ${colourOf(part.kind)}` }), part.kind),
    element("dd", {}, part.text)));
  const width = interval ? `KV cache in 9 of 10 start-ups: ${interval.text} (hatched).` : "";
  const lack = beyond ? "The GPU's memory ends at the line." : "";
  return element("div", {}, element("dl", { class: "legend" }, rows),
    element("p", { class: "range" }, `${memory.text} on one GPU. ${width}${lack}`));
}

function speedCard(view, { speed, isWaiting }) {
  if (!speed) {
    const words = view.verdict.state === "not" ? "No times: it does not fit." : isWaiting ? "Playing the load …" : "No times are known for this device.";
    const made = card("How fast", element("p", { class: "quiet" }, words));
    if (isWaiting && view.verdict.state !== "not") made.classList.add("later");
    return made;
  }
  return card("How fast", facts([...speed.rows, ...(speed.cost ? [{ name: "cost", value: speed.cost.text, detail: speed.cost.detail }] : [])]),
    element("p", { class: "quiet" }, `${speed.load}. ${speed.profile ?? "By the data sheet (roofline), not measured."}`));
}

function changesCard({ changes, onChange }) {
  const buttons = (changes ?? []).map((each) =>
    element("button", { type: "button", class: "change", title: `${each.sequences} sequences`, onclick: () => onChange(each.arguments) },
      `${each.text} `, element("b", {}, each.worth)));
  const none = element("p", { class: "quiet" }, changes ? "None of the usual changes helps." : "Trying …");
  return card("What would change it", element("div", { class: "changes" }, buttons.length ? buttons : none));
}

function cacheCard({ cache, title: of }) {
  const rows = cache.rows.map((each) => [each.kind, each.bytes, element("code", {}, each.formula)]);
  const title = `KV cache in ${cache.dtype}: ${cache.sequence} for one sequence`;
  return card(title, scrolling(`${title}: ${of}`, table(["kind of layer", "costs", "formula"], rows, title)));
}

function details(view) {
  const list = (sentences) => element("ul", { class: "list" }, sentences.map((each) => element("li", {}, each)));
  return element("div", { class: "stack folds" },
    foldable("Where the interval comes from",
      view.evidence ? element("p", {}, view.evidence) : null,
      facts(view.causes.map((each) => ({ name: each.cause, value: each.bytes, detail: each.meaning })))),
    foldable("Weights",
      table(["kind", "format", "bytes"], view.weights.map((each) => [each.kind, each.format, each.bytes]), "Weights by kind"),
      element("p", { class: "quiet" }, `${view.model}. ${view.source ?? ""}`)),
    foldable("Assumptions", list(view.assumptions)));
}
