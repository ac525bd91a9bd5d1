"use strict";
// Nodes and words. Texts are only ever set as text nodes or attributes, never as HTML.

function element(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === "" || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

// Fill a section; without children it is hidden.
function fill(id, ...children) {
  const section = document.getElementById(id);
  section.replaceChildren();
  append(section, children);
  section.hidden = section.childNodes.length === 0;
  return section;
}

function title(section, text, level = "h2") {
  return element(level, { id: `${section}-title` }, text);
}

// What is read only by whoever opens it; it stays open while other answers are drawn.
const opened = new Map();

function fold(name, label, isOpen, ...children) {
  const node = element("details", { class: "fold", "data-fold": name }, element("summary", {}, label), children);
  node.open = opened.has(name) ? opened.get(name) : isOpen;
  node.firstChild.addEventListener("click", () => opened.set(name, !node.open));
  return node;
}

// A section of the page that is a fold: its heading is what opens it.
function section(id, heading, isOpen, ...children) {
  const content = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  return fill(id, content.length > 0 && fold(id, title(id, heading), isOpen, content));
}

function isNarrow() { return window.innerWidth < 720; }

// "3.60-24.3" is typed; a range is printed with an en dash. Names such as SXM2-16GB stay.
function range(bounds) {
  return String(bounds || "").replace(/^([\d.,]+)-([\d.,]+)$/, "$1–$2");
}

function prose(text) {
  return String(text).replace(/\(([\d.,]+)-([\d.,]+)(?=[),])/g, "($1–$2");
}

// Flags of the command line stay whole where a line ends.
function flagged(text) {
  return String(text).split(/(--[a-z][a-z-]*)/).map((piece, place) => (
    place % 2 ? element("span", { class: "flag" }, piece) : piece));
}

// A value with its bounds, the bounds on a line of their own.
function interval([value, bounds]) {
  return [element("span", { class: "value" }, value),
          bounds && element("span", { class: "bounds" }, range(bounds))];
}

function percent(fraction) {
  const shown = 100 * fraction;
  if (shown > 0 && shown < 1) return "<1 %";
  return `${Math.round(shown)} %`;
}

function definitions(pairs) {
  return element("dl", { class: "facts" }, pairs.filter(([, value]) => value).map(
    ([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

// A share drawn as a bar; the number beside it says the same.
function bar(fraction, kind = "") {
  const filled = element("span", { class: `bar-fill ${kind}` });
  filled.style.width = `${(100 * Math.min(Math.max(fraction, 0), 1)).toFixed(2)}%`;
  return element("span", { class: "bar-track", "aria-hidden": "true" }, filled);
}

// columns: [{name, cell(row), sort(row)?, numeric?, wide?}]; wide ones are left out on small screens.
// Rows after the first `most` are shown to whoever asks for them.
function table(caption, columns, rows, { key, selected, pick, label, most = Infinity } = {}) {
  let order = { column: null, down: false };
  const isLong = () => rows.length > most + 1 && !opened.get(caption);
  const rest = element("button", { type: "button", class: "rest", onclick: () => {
    opened.set(caption, true);
    drawRows();
  } }, `Show all ${rows.length}`);
  const body = element("tbody");
  const head = element("tr", {}, columns.map((column, place) => headCell(column, place)));
  const node = element("table", {}, element("caption", { class: "hidden-text" }, caption),
                       element("thead", {}, head), body);

  function headCell(column, place) {
    const kind = `${column.numeric ? "numeric" : ""} ${column.wide ? "wide-only" : ""}`;
    if (!column.sort) return element("th", { scope: "col", class: kind }, column.name);
    const button = element("button", { type: "button", class: "sort", onclick: () => {
      order = { column, down: order.column === column && !order.down };
      [...head.children].forEach((cell, at) => cell.setAttribute("aria-sort",
        at !== place ? "none" : order.down ? "descending" : "ascending"));
      drawRows();
    } }, column.name, element("span", { class: "arrow", "aria-hidden": "true" }));
    return element("th", { scope: "col", class: kind, "aria-sort": "none" }, button);
  }

  function drawRows() {
    const shown = [...rows];
    if (order.column) {
      const way = order.down ? -1 : 1;
      shown.sort((a, b) => {
        const [x, y] = [order.column.sort(a), order.column.sort(b)];
        return way * (typeof x === "string" ? x.localeCompare(y) : x - y);
      });
    }
    rest.hidden = !isLong();
    const listed = shown.filter((row, place) => !isLong() || place < most || (pick && key(row) === selected()));
    body.replaceChildren(...listed.map((row) => {
      const cells = columns.map((column) => element("td", {
        class: `${column.numeric ? "numeric" : ""} ${column.wide ? "wide-only" : ""}`,
      }, column.cell(row)));
      if (!pick) return element("tr", {}, cells);
      const choice = element("input", {
        type: "radio", name: "candidate", value: key(row), "aria-label": label(row),
        checked: key(row) === selected(), onchange: () => pick(key(row)),
      });
      cells[0].prepend(choice);
      return element("tr", { "data-key": key(row), class: "choosable",
                             onclick: () => { choice.checked = true; choice.focus(); pick(key(row)); },
      }, cells);
    }));
    if (pick) markSelected(body, selected());
  }

  drawRows();
  return element("div", { class: "table-frame" }, node, rest);
}

function markSelected(within, key) {
  for (const row of within.querySelectorAll("tr[data-key]")) {
    row.classList.toggle("selected", row.dataset.key === key);
    const choice = row.querySelector("input");
    if (choice) choice.checked = row.dataset.key === key;
  }
}
