"use strict";
function value(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.v;
  if (text === undefined) return cell.textContent.trim();
  return text === "" ? -Infinity : Number(text);
}
function compare(a, b) {
  const numbers = typeof a === "number" && typeof b === "number";
  return numbers ? Number(a > b) - Number(a < b) : String(a).localeCompare(String(b), "en");
}
function sort(head) {
  const table = head.closest("table"), body = table.tBodies[0];
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = [...body.rows].map((row) => [value(row, head.cellIndex), row]);
  rows.sort((a, b) => (up ? 1 : -1) * compare(a[0], b[0]));
  body.append(...rows.map((pair) => pair[1]));
}
for (const head of document.querySelectorAll("table.sortable th")) {
  head.querySelector("button").addEventListener("click", () => sort(head));
}

// What a link leads to is seen, also where it is folded.
function unfold() {
  let place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (place?.tagName === "TR") place.querySelector("details").open = true;
  for (; place; place = place.parentElement) if (place.tagName === "DETAILS") place.open = true;
}
window.addEventListener("hashchange", unfold);
window.addEventListener("load", unfold);

// With ?selftest the page checks itself, and says the result in <html data-selftest>.
function checkTables(fail) {
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const head of table.tHead.rows[0].cells) {
      for (const direction of [1, -1]) {
        head.querySelector("button").click();
        const values = [...table.tBodies[0].rows].map((row) => value(row, head.cellIndex));
        const wrong = values.some((v, i) => i && direction * compare(values[i - 1], v) > 0);
        if (wrong) fail(`column ${head.textContent} is not sorted`);
      }
    }
  }
}
function checkLinks(fail) {
  for (const link of document.querySelectorAll("a")) {
    const href = link.getAttribute("href");
    if (href.startsWith("#") && !document.getElementById(href.slice(1))) fail(`${href} leads nowhere`);
    if (!link.download) continue;
    const text = new TextDecoder().decode(Uint8Array.from(atob(href.split(",")[1]), (c) => c.charCodeAt(0)));
    if (link.download.endsWith(".svg")) {
      const root = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
      if (root.tagName !== "svg") fail(`${link.download} is no SVG`);
    } else if (text.split("\n").length < 3) fail(`${link.download} is empty`);
  }
}
function checkFigures(fail) {
  for (const svg of document.querySelectorAll(".drawing svg, .legend svg")) {
    const box = svg.getBoundingClientRect();
    if (box.width < 20 || box.height < 10) fail(`a figure of ${box.width} x ${box.height}`);
  }
  const bar = document.querySelector("nav");
  if (bar.scrollWidth > bar.clientWidth + 1) fail(`the bar is ${bar.scrollWidth} wide, and shows ${bar.clientWidth}`);
  if (document.documentElement.scrollWidth > window.innerWidth + 1) {
    fail(`the page is ${document.documentElement.scrollWidth} wide, the window ${window.innerWidth}`);
  }
}
if (location.search === "?selftest") {
  window.addEventListener("load", () => {
    const fail = (text) => window.problems.push(text);
    for (const details of document.querySelectorAll("details")) details.open = true;
    for (const check of [checkFigures, checkTables, checkLinks]) check(fail);
    document.documentElement.dataset.selftest = window.problems.join("; ") || "passed";
    document.documentElement.dataset.checked =
      [".drawing svg", "table.sortable", "a"].map((q) => document.querySelectorAll(q).length).join(" ");
  });
}
