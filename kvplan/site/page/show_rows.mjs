// Rows of a sweep: measured beside predicted.
import { card, element, scrolling, table } from "./dom.mjs";

export function showRows(answer, name) {
  const { view } = answer;
  const lines = view.rows.flatMap((row) => row.pairs.map((pair) => [
    element("span", {}, row.name, element("small", {}, row.about.join(", "))),
    pair.name, pair.predicted, pair.measured, pair.difference,
  ]));
  const title = `${name}: ${view.num_shown} of ${view.num_rows} rows have both`;
  return element("div", { class: "stack" }, card(title,
    scrolling(title, table(["trial", "figure", "predicted", "measured", "difference"], lines, title))));
}
