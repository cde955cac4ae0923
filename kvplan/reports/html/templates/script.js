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
