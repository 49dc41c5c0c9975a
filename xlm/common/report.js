"use strict";
// Tables of a report: a click on a heading sorts, and a word above finds languages in all of them.
(() => {
  const tables = [...document.querySelectorAll(".report table")].filter((table) => table.tBodies.length);
  const text = (row, column) => row.cells[column].textContent.trim();
  const isByLanguage = (table) => text(table.tHead.rows[0], 0) === "language";
  // Among languages, rows of means are in bold and stay at the end.
  const isMean = (row) => isByLanguage(row.closest("table")) && row.cells[0].querySelector("strong") !== null;

  /** The number that a cell begins with; null if it begins with none. */
  function number(cell) {
    const plain = cell.replace(/,(?=\d{3})/g, "").replace(/^\* /, "").replace(/^\u2212/, "-");
    const found = plain.match(/^[+-]?\d+(\.\d+)?(e[+-]?\d+)?/i);
    return found ? Number(found[0]) : null;
  }

  function sort(table, column, sign) {
    const body = table.tBodies[0], rows = [...body.rows];
    const keys = new Map(rows.map((row) => [row, text(row, column)]));
    const filled = [...keys.values()].filter((key) => key !== "");
    const isNumeric = filled.length > 0 && filled.every((key) => number(key) !== null);
    const compare = (a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      if (isMean(a) !== isMean(b)) return isMean(a) ? 1 : -1;
      if (!x || !y) return (x ? 0 : 1) - (y ? 0 : 1); // empty cells last, either way
      return sign * (isNumeric ? number(x) - number(y) : x.localeCompare(y, "en"));
    };
    body.append(...rows.sort(compare));
    [...table.tHead.rows[0].cells].forEach((cell, i) => {
      if (i === column) cell.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    });
  }

  function makeSortable(table) {
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      if (!cell.textContent.trim() && column) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...cell.childNodes);
      if (!button.textContent.trim()) button.setAttribute("aria-label", "first column");
      const isText = !cell.style.textAlign;
      button.addEventListener("click", () => {
        const sorted = cell.getAttribute("aria-sort");
        // Numbers begin with the largest, text at its alphabet's beginning.
        sort(table, column, sorted ? (sorted === "ascending" ? -1 : 1) : isText ? 1 : -1);
      });
      cell.append(button);
    });
  }
  tables.filter((table) => table.tBodies[0].rows.length > 1).forEach(makeSortable);

  const byLanguage = tables.filter(isByLanguage);
  const bar = document.querySelector(".report .bar");
  if (!bar || !byLanguage.some((table) => table.tBodies[0].rows.length > 8)) return;
  bar.hidden = false;
  const input = bar.querySelector("input"), found = bar.querySelector("span");
  input.addEventListener("input", () => {
    const word = input.value.trim().toLowerCase();
    const codes = new Set();
    byLanguage.forEach((table) => [...table.tBodies[0].rows].forEach((row) => {
      row.hidden = !text(row, 0).toLowerCase().includes(word);
      if (!row.hidden && !isMean(row)) codes.add(text(row, 0));
    }));
    found.textContent = word ? `${codes.size} found` : "";
  });
})();

// Light or dark, as the system says, or as a person chose.
(() => {
  const root = document.documentElement, button = document.createElement("button");
  const style = () => root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const other = () => (style() === "dark" ? "light" : "dark");
  function show(chosen) {
    root.style.colorScheme = chosen;
    button.textContent = `${other()} page`;
  }
  let stored = "";
  try { stored = localStorage.getItem("theme") ?? ""; } catch { /* files may have no storage */ }
  button.addEventListener("click", () => {
    show(other());
    try { localStorage.setItem("theme", style()); } catch { /* the same */ }
  });
  Object.assign(button, { id: "theme", type: "button" });
  show(stored);
  document.body.append(button);
})();

// What a chart says of the place under the pointer, at once and on touch screens.
(() => {
  const tip = document.createElement("div");
  Object.assign(tip, { id: "tip", hidden: true });
  document.body.append(tip);
  document.querySelectorAll(".chart title").forEach((title) => {
    title.parentElement.dataset.tip = title.textContent;
    title.remove();
  });
  const move = (event) => {
    tip.textContent = event.target.dataset?.tip ?? "";
    tip.hidden = !tip.textContent;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4)}px`;
  };
  ["pointermove", "pointerdown"].forEach((kind) => document.addEventListener(kind, move));
})();
