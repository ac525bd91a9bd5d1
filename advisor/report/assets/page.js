// Draws the page, and draws it again when another candidate is chosen or another answer arrives.

const report = {
  data: JSON.parse(document.getElementById("data").textContent),
  live: JSON.parse(document.getElementById("live").textContent),
  selected: null,
  isWaiting: false, // for what would change the answer
  draw: drawReport, complete, select, element, candidateCard,
};
window.advisorReport = report;

function firstKey() {
  const pick = report.data.answer.picks.best_value;
  const rows = everyRow();
  if (pick !== undefined && rowOf(String(pick))) return String(pick);
  return rows.length ? keyOf(rows[0]) : null;
}

function drawReport(data) {
  const isNew = Boolean(data);
  if (isNew) report.data = data;
  if (isNew || !report.selected) report.selected = firstKey();
  document.documentElement.dataset.ready = "false";
  drawChoice();
  drawFront();
  drawRows();
  markPicks();
  painted("front-plot");
  drawCandidate();
  drawChanges();
  drawCluster();
  drawRun();
  drawSources();
  drawFoot();
  painted("ready");
  document.documentElement.dataset.ready = "true";
  document.dispatchEvent(new CustomEvent("advisor:drawn"));
}

// The same answer with what would change it and where numbers are from: all else stays as it is.
function complete(data) {
  report.data = data;
  report.isWaiting = false;
  drawCandidate();
  drawChanges();
}

// Note when the screen has what was drawn: after the next frame.
function painted(name) {
  requestAnimationFrame(() => setTimeout(() => performance.mark(`advisor:${name}`)));
}

function select(key, scrolls = false) {
  if (!wordsOf(key)) return;
  report.selected = key;
  markPicks();
  markSelected(document.getElementById("front"), key);
  drawCandidate();
  drawFrontPlot(shownRows().filter(isWanted));
  if (scrolls) document.getElementById("candidate").scrollIntoView({ block: "start" });
  document.dispatchEvent(new CustomEvent("advisor:selected", { detail: key }));
}

function markPicks() {
  for (const card of document.querySelectorAll("[data-pick]")) {
    card.setAttribute("aria-pressed", String(card.dataset.pick === report.selected));
  }
}

function drawFoot() {
  const { made, words } = report.data;
  document.getElementById("foot").replaceChildren(element("p", { class: "quiet" },
    `Made by advisor ${report.live ? "ui" : "report"}${made ? ` on ${made}` : ""}${words.prices ? ` with ${words.prices}` : ""}. `
    + (report.live ? "This page asks nobody but the program that shows it."
      : "This page is one file and asks the network for nothing.")));
}

const THEMES = ["system", "light", "dark"];
document.getElementById("theme").addEventListener("click", (event) => {
  const root = document.documentElement;
  const next = THEMES[(THEMES.indexOf(root.dataset.theme || "system") + 1) % THEMES.length];
  root.dataset.theme = next;
  event.currentTarget.textContent = `Theme: ${next}`;
});
document.getElementById("print").addEventListener("click", () => window.print());
// What to paste is printed too; model cards are opened by whoever wants them on paper.
let unfolded = [];
window.addEventListener("beforeprint", () => {
  unfolded = [...document.querySelectorAll("main .fold:not([open]), .advice details:not([open])")];
  for (const node of unfolded) node.open = true;
});
window.addEventListener("afterprint", () => {
  for (const node of unfolded) node.open = false;
});

drawReport();
