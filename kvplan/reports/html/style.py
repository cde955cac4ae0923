"""The page's style sheet and its few lines of script (sorting, copying, opening everything before printing)."""

from __future__ import annotations

from typing import Final

CSS: Final = """
:root { --ink: #1f2328; --faint: #57606a; --line: #d8dee4; --soft: #f6f8fa; --blue: #0072B2; --green: #007A5A; }
* { box-sizing: border-box; }
html { color-scheme: light; -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 1120px; padding: 1rem 1.1rem 4rem; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.55rem; line-height: 1.25; margin: .4rem 0 .2rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .5rem; padding-top: .8rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0 0 .3rem; }
p { margin: .4rem 0; }
.faint, figcaption { color: var(--faint); font-size: .9rem; }
nav { font-size: .9rem; margin: .6rem 0; display: flex; flex-wrap: wrap; gap: .2rem .9rem; }
a { color: var(--blue); }
figure { margin: .6rem 0; }
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch; border: 1px solid var(--line); border-radius: 6px; }
.scroll:focus-visible { outline: 2px solid var(--blue); }
figure .scroll { border: 0; }
figure img { display: block; width: 100%; min-width: 540px; height: auto; }
.cards { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: .9rem; }
.card { border: 1px solid var(--line); border-radius: 8px; padding: .9rem 1rem; min-width: 0; break-inside: avoid; }
.card.first { grid-column: 1 / -1; border: 2px solid var(--green); }
.card:last-child:nth-child(even) { grid-column: 1 / -1; }
.card.first h3 { font-size: 1.15rem; }
dl { display: grid; align-content: start;
  grid-template-columns: minmax(8rem, max-content) minmax(0, 1fr); gap: .05rem .9rem; margin: .5rem 0;
  font-size: .92rem; }
dt { color: var(--faint); overflow-wrap: break-word; min-width: 0; }
dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: 0 1.5rem; }
.command { position: relative; margin: .5rem 0; }
.command .label { font-size: .8rem; color: var(--faint); }
pre { margin: 0; padding: .6rem .7rem; background: var(--soft); border: 1px solid var(--line); border-radius: 6px;
  white-space: pre-wrap; overflow-x: auto; font: .85rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
pre span { white-space: nowrap; }
button { font: inherit; font-size: .8rem; padding: .1rem .55rem; border: 1px solid var(--line); border-radius: 5px;
  background: #fff; cursor: pointer; }
.command button { position: absolute; right: 0; top: -.15rem; }
.badge { display: inline-block; padding: 0 .5em; border-radius: 4px; border: 1px solid #0002; font-size: .85em;
  white-space: nowrap; }
.badges { display: flex; flex-wrap: wrap; gap: .4rem .9rem; margin: .5rem 0; font-size: .92rem; }
table { border-collapse: collapse; font-size: .82rem; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .55rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
thead th { background: var(--soft); position: sticky; top: 0; vertical-align: bottom; white-space: normal;
  overflow-wrap: normal; font-weight: 600; }
thead th[data-sortable] { cursor: pointer; }
thead th[aria-sort="ascending"]::after { content: " \\25B2"; }
thead th[aria-sort="descending"]::after { content: " \\25BC"; }
th .unit { display: block; font-weight: 400; color: var(--faint); }
td.text, th.text { text-align: left; }
td { white-space: nowrap; }
tbody tr:nth-child(even) { background: #fafbfc; }
details { margin: .5rem 0; }
summary { cursor: pointer; font-weight: 600; padding: .3rem 0; }
.waste { display: grid; margin: .6rem 0 1.2rem;
  grid-template-columns: minmax(0, 11rem) minmax(0, 1fr); gap: .5rem .8rem; align-items: center;
  max-width: 52rem; font-size: .92rem; }
.bar { display: flex; height: 1.9rem; border: 1px solid #0003; border-radius: 4px; overflow: hidden; }
.bar .full { background: var(--green); color: #fff; padding: .2rem .5rem; white-space: nowrap; }
.bar .empty { flex: 1; padding: .2rem .5rem; white-space: nowrap; overflow: hidden;
  background: repeating-linear-gradient(45deg, #fbe9dd 0 7px, #fff 7px 14px); }
.note { background: #fff8e1; border: 1px solid #e6c200; border-radius: 6px; padding: .5rem .8rem; margin: .6rem 0; }
.phone { display: none; }
@media (max-width: 640px) {
  .phone { display: block; }
  .cards { grid-template-columns: 1fr; }
  body { padding: .6rem .8rem 3rem; }
  .waste { grid-template-columns: 1fr; gap: .15rem; }
  .waste .bar { margin-bottom: .6rem; }
  dl { grid-template-columns: minmax(6.5rem, 42%) minmax(0, 1fr); }
}
@media print {
  @page { size: A4 landscape; margin: 11mm; }
  body { max-width: none; font-size: 10.5pt; padding: 0; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  nav, button, .screen { display: none; }
  figure, tr, .waste { break-inside: avoid; }
  h2, h3, summary { break-after: avoid; }
  figure img { min-width: 0; max-width: 100%; max-height: 155mm; width: auto; }
  .scroll { overflow: visible; border: 0; }
  thead th { position: static; }
  td.long { min-width: 48mm; }
  details:not([open]) { display: none; }
  table { font-size: 7pt; }
  th, td { padding: .1rem .3rem; }
  td.text { white-space: normal; overflow-wrap: anywhere; }
}
"""

SCRIPT: Final = """
function compare(a, b) {
  if (a === b) return 0;
  if (a === "") return 1;
  if (b === "") return -1;
  var x = Number(a), y = Number(b);
  return isNaN(x) || isNaN(y) ? a.localeCompare(b) : x - y;
}
function sortBy(head) {
  var table = head.closest("table"), body = table.tBodies[0], place = head.cellIndex;
  var up = head.getAttribute("aria-sort") !== "ascending";
  table.querySelectorAll("thead th").forEach(function (other) { other.removeAttribute("aria-sort"); });
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  function key(row) { return row.cells[place].dataset.value || ""; }
  Array.from(body.rows).sort(function (a, b) {
    var x = key(a), y = key(b);
    if (x === "" || y === "") return compare(x, y);
    return up ? compare(x, y) : compare(y, x);
  }).forEach(function (row) { body.appendChild(row); });
}
document.querySelectorAll("th[data-sortable]").forEach(function (head) {
  head.tabIndex = 0;
  head.addEventListener("click", function () { sortBy(head); });
  head.addEventListener("keydown", function (event) { if (event.key === "Enter") sortBy(head); });
});
document.querySelectorAll("button[data-copy]").forEach(function (button) {
  button.addEventListener("click", function () {
    var text = button.parentElement.querySelector("pre").textContent;
    if (!navigator.clipboard) return;
    navigator.clipboard.writeText(text).then(function () { button.textContent = "copied"; });
  });
});
window.addEventListener("beforeprint", function () {
  document.querySelectorAll("details:not(.columns)").forEach(function (part) { part.open = true; });
});
"""
