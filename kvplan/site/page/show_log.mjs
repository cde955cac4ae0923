// A start-up log: why it stopped, what to change, and where each GiB went beside what was predicted.
import { card, command, element, facts, foldable, scrolling, table } from "./dom.mjs";

export function showLog(answer) {
  const { view } = answer;
  return element("div", { class: "stack" },
    card(null,
      element("div", { class: "head" }, element("h2", { class: "title" }, `${view.title}: ${view.model}${view.gpu ? ` on ${view.gpu}` : ""}`),
        element("span", { class: `state ${view.failure ? "not" : "fits"}` }, view.failure ? "Stopped" : "Started")),
      view.failure ? element("p", { class: "warning" }, view.failure) : null,
      changes(view)),
    view.memory.length ? card("Where the memory went", scrolling("Memory", table(["of one GPU", "log", "kvplan", "difference, GiB"],
      view.memory.map((each) => [each.part, each.logged, each.predicted, each.difference]), "Memory, logged and predicted")),
      view.counts.length ? table(["figure", "log", "kvplan"], view.counts.map((each) => [each.part, each.logged, each.predicted]), "Counts") : null) : null,
    view.notes.length ? card("Notes", element("ul", { class: "list" }, view.notes.map((each) => element("li", {}, each)))) : null,
    view.settings.length ? foldable("Settings that were read", facts(view.settings)) : null,
    card("Command", command(answer.command, "kvplan's command")));
}

function changes(view) {
  if (!view.changes.length) return element("p", { class: "quiet" }, "Nothing to change was found.");
  return element("div", {}, element("h3", {}, "What to change"), element("ol", { class: "list" }, view.changes.map((each) =>
    element("li", {}, each.change, each.gained ? element("b", {}, ` (${each.gained})`) : null))));
}
