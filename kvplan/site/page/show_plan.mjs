// GPUs ranked for a load: the best in words, all in a table, each with its commands.
import { card, command, element, foldable, scrolling, table } from "./dom.mjs";

/** which: of two plans side by side, for a screen reader. */
export function showPlan(answer, which = "") {
  const { view } = answer;
  const best = view.rows[0];
  return element("div", { class: "stack" },
    best ? bestCard(view, best) : problemCard(view),
    view.rows.length > 1 ? rowsCard("All that serve it", view.rows, view.more, which) : null,
    view.alternatives.length ? rowsCard("In other formats, which change answers", view.alternatives, 0, which) : null,
    card("Command", command(answer.command, "kvplan's command")),
    view.left_out.length ? foldable("GPUs that do not serve it", element("ul", { class: "list" },
      view.left_out.map((each) => element("li", {}, `${each.gpu}: ${each.sentence}`)))) : null,
    foldable("Assumptions", element("ul", { class: "list" }, view.assumptions.map((each) => element("li", {}, each)))));
}

function bestCard(view, best) {
  const made = card(null,
    element("div", { class: "head" }, element("h2", { class: "title" }, `${view.title}, best of ${view.tried} tried`),
      element("span", { class: `state ${best.slo === "met" ? "fits" : "may"}` }, `${best.slo === "met" ? "Serves it" : "May serve it"}: ${best.sure} sure`)),
    element("div", { class: "verdict" }, element("span", { class: "number" }, best.name),
      element("span", { class: "words" }, [best.layout, best.hourly === "-" ? "" : `${best.hourly} per hour`].filter(Boolean).join(", "))),
    element("p", { class: "range" }, `TTFT p50 ${best.ttft}, TPOT p50 ${best.tpot}, ${best.throughput}; holds ${best.average} average sequences. Bound by: ${best.limit}.`),
    best.million === "-" ? null : element("p", { class: "range" }, `${best.million} per million output tokens (${best.price})`),
    ...Object.entries(best.commands).slice(0, 3).map(([engine, line]) => command(line, `${engine}'s command`)),
    element("p", { class: "quiet" }, best.profile ?? "Times by the data sheet (roofline), not measured."));
  made.classList.add("best");
  return made;
}

function problemCard(view) {
  return element("div", { class: "stack" }, card("Nothing serves this load",
    element("p", { class: "warning" }, view.problem),
    view.fix ? element("p", {}, `What would: ${view.fix.sentence}. Then ${view.fix.row.name} ${view.fix.row.layout} serves it.`) : null));
}

function rowsCard(title, rows, more, which) {
  const lines = rows.map((row) => [
    element("span", {}, row.name, element("small", {}, [row.layout, row.formats].filter(Boolean).join("; "))),
    row.average, row.worst, row.ttft, row.tpot, row.throughput, row.hourly, row.million,
    row.sure, row.limit,
  ]);
  const heads = ["deployment", "at average", "at longest", "TTFT p50", "TPOT p50", "output", "$/h", "$/Mtok out", "sure", "bound by"];
  const made = table(heads, lines, title);
  made.classList.add("wide");
  return card(title, scrolling(which ? `${title}, ${which}` : title, made),
    more ? element("p", { class: "quiet" }, `… and ${more} more in the JSON document`) : null);
}
