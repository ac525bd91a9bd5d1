// Draws the page, and draws it again when another candidate is chosen or another answer arrives.

const report = {
  data: JSON.parse(document.getElementById("data").textContent),
  live: JSON.parse(document.getElementById("live").textContent),
  selected: null,
  draw: drawReport, select, element, candidateCard,
};
window.advisorReport = report;

function firstKey() {
  const pick = report.data.answer.picks.best_value;
  const rows = everyRow();
  if (pick !== undefined && rowOf(String(pick))) return String(pick);
  return rows.length ? keyOf(rows[0]) : null;
}

let turn = 0;

async function drawReport(data) {
  const mine = (turn += 1);
  const isNew = Boolean(data);
  if (isNew) report.data = data;
  if (isNew || !report.selected) report.selected = firstKey();
  document.documentElement.dataset.ready = "false";
  plotly().catch(() => null);  // unpacked beside this thread; who draws says what went wrong
  drawChoice();
  drawFront();
  drawChanges();
  drawCluster();
  drawSources();
  drawFoot();
  markPicks();
  const drawn = [drawRows(), drawCandidate(), drawRun()];
  performance.mark("advisor:words");
  try {
    await Promise.all(drawn);
  } catch (error) {
    chartsFailed(error);
  }
  if (mine !== turn) return;  // a later answer is being drawn
  performance.mark("advisor:ready");
  document.documentElement.dataset.ready = "true";
  document.dispatchEvent(new CustomEvent("advisor:drawn"));
}

function chartsFailed(error) {
  for (const node of document.querySelectorAll(".plot:not(.js-plotly-plot)")) {
    node.style.height = "auto";
    node.replaceChildren(element("p", { class: "empty" },
      `This chart could not be drawn (${error.message || error}); a current browser is needed. The tables hold the same numbers.`));
  }
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
  const { made, answer } = report.data;
  document.getElementById("foot").replaceChildren(element("p", { class: "quiet" },
    `Made by advisor ${report.live ? "ui" : "report"}${made ? ` on ${made}` : ""} with prices of ${answer.catalogue.as_of}. `
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
let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll(".advice details:not([open])")];
  for (const node of opened) node.open = true;
  fitPaper(true);
});
window.addEventListener("afterprint", () => {
  for (const node of opened) node.open = false;
  fitPaper(false);
});

drawReport();
