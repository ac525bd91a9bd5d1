// The choice, the candidates as a chart and as a table, and the filters over both.

const wanted = { provider: new Set(), accelerator: new Set(), pricing: new Set() };
const FILTERS = { provider: "Provider", accelerator: "Accelerator", pricing: "Price" };

function shownRows() {
  const { answer } = report.data;
  return answer.front.length ? answer.front : answer.nearest;
}

function keyOf(row) { return row.rank === 0 ? "here" : String(row.rank); }

function everyRow() {
  const { here } = report.data.answer;
  return here ? [...shownRows(), here] : shownRows();
}

function rowOf(key) { return everyRow().find((row) => keyOf(row) === key); }
function wordsOf(key) { return report.data.words.candidates[key]; }

function traits(row) {
  const parts = row.configuration;
  return {
    provider: parts.map((part) => part.provider),
    accelerator: parts.map((part) => part.accelerator || "no accelerator"),
    pricing: parts.map((part) => part.pricing),
  };
}

function isWanted(row) {
  const has = traits(row);
  return Object.entries(wanted).every(([name, set]) => !set.size || has[name].some((one) => set.has(one)));
}

function drawChoice() {
  const { answer, words } = report.data;
  const [lead, ...more] = answer.summary;
  const said = lead || (answer.front.length ? "" : "Nothing satisfies the constraints.");
  if (!lead && answer.nearest.length) more.push("What comes nearest is listed.");
  if (lead && !answer.front.length) {
    more.push("Nothing that can be rented satisfies the constraints; it is listed for comparison.");
  }
  const picks = new Map();
  for (const [name, place] of Object.entries(answer.picks)) {
    const key = String(place);
    picks.set(key, [...(picks.get(key) || []), words.picks[name] || name]);
  }
  fill("choice",
    element("p", { class: "overline" }, answer.run),
    element("h1", { id: "choice-title" }, prose(said)),
    more.length > 0 && element("p", { class: "lead" }, prose(more.join(" "))),
    element("p", { class: "quiet" }, flagged(words.job)),
    picks.size > 0 && element("div", { class: "picks" }, [...picks].map(([key, names]) => pickCard(key, names))),
    !shownRows().length && element("p", { class: "empty" }, "No candidate is left to show; what ruled them out stands below."));
}

function pickCard(key, names) {
  if (!wordsOf(key)) return null;
  return element("button", { type: "button", class: "card", "data-pick": key,
                             onclick: () => select(key, true) },
    element("span", { class: "card-name" }, names.join(", ")), candidateCard(key));
}

// A candidate's machines, time and cost: in the picks, and for whoever compares.
function candidateCard(key) {
  const words = wordsOf(key);
  return element("span", { class: "card-body" },
    element("span", { class: "card-machines" }, words.machines),
    element("span", { class: "quiet" }, `${words.inside}, ${words.where}`),
    element("span", { class: "card-numbers" },
      element("span", {}, interval(words.time)), element("span", {}, interval(words.cost))));
}

function drawFront() {
  const rows = shownRows();
  if (!rows.length) return fill("front");
  const { answer } = report.data;
  const coverage = percent(rows[0].cost_usd.coverage);
  return fill("front",
    title("front", answer.front.length ? "Time against cost" : "The nearest misses"),
    element("p", { class: "quiet" }, `Each point is a set of machines; bars are ${coverage} intervals. `
      + "Drag to zoom, double-click to zoom out, choose a point or a row to see it in full."),
    filters(),
    frame("front-plot", "Training time against cost of every candidate; the table below has the same numbers.",
          window.innerWidth < 500 ? 540 : 440),
    element("div", { id: "front-table" }));
}

function filters() {
  const groups = Object.entries(FILTERS).map(([name, label]) => {
    const values = [...new Set([...shownRows(), ...others().map(([, one]) => one)].flatMap((row) => traits(row)[name]))].sort();
    if (values.length < 2) { wanted[name].clear(); return null; }
    return element("fieldset", { class: "filter" }, element("legend", {}, label), values.map((value) =>
      element("label", { class: "chip" }, element("input", {
        type: "checkbox", "data-filter": name, value, checked: wanted[name].has(value),
        onchange: (event) => {
          wanted[name][event.target.checked ? "add" : "delete"](value);
          drawRows();
        },
      }), value)));
  }).filter(Boolean);
  return groups.length ? element("div", { class: "filters" }, groups,
    element("p", { class: "quiet", id: "filter-count", role: "status" })) : null;
}

// What could be rented in place of a row: [row, alternative, its words].
function others() {
  return shownRows().flatMap((row) => row.alternatives.map((one, place) => [
    row, one, wordsOf(keyOf(row)).alternatives[place]]));
}

function isFiltering() { return Object.values(wanted).some((set) => set.size); }

function drawRows() {
  const rows = shownRows().filter(isWanted);
  const { here } = report.data.answer;
  const listed = here ? [...rows, here] : rows;
  const every = shownRows().length;
  const count = document.getElementById("filter-count");
  if (count) {
    count.textContent = isFiltering() ? `${rows.length} of ${every} rows pass. They are the best of everything `
      + "that was asked for; for the best of some providers or accelerators alone, ask for these." : "";
  }
  const place = document.getElementById("front-table");
  if (!place) return Promise.resolve();
  const words = (row) => wordsOf(keyOf(row));
  place.replaceChildren(listed.length ? table("Candidates", [
    { name: "#", cell: (row) => row.rank || "here", sort: (row) => row.rank || Infinity },
    { name: "Machines", sort: (row) => words(row).machines, cell: (row) => [
      element("span", { class: "value" }, words(row).machines, row.extrapolating ? " *" : ""),
      element("span", { class: "bounds" }, `${words(row).inside}, ${words(row).where}`),
      words(row).picked_as && element("span", { class: "badge" }, words(row).picked_as)] },
    { name: "Time", numeric: true, sort: (row) => row.training_time_h.value, cell: (row) => interval(words(row).time) },
    { name: "Cost", numeric: true, sort: (row) => row.cost_usd.value, cell: (row) => interval(words(row).cost) },
    { name: "Layout", wide: true, sort: (row) => words(row).layout.degrees, cell: (row) => words(row).layout.degrees },
    { name: "Mostly", wide: true, sort: (row) => row.bottleneck, cell: (row) => row.bottleneck },
  ], listed, { key: keyOf, selected: () => report.selected, pick: (key) => select(key),
               label: (row) => `Show ${words(row).machines}` })
    : element("p", { class: "empty" }, "No candidate passes the filters."));
  const instead = isFiltering() ? others().filter(([, one]) => isWanted(one)) : [];
  if (instead.length) {
    place.append(element("h3", {}, "In place of a row"), table("In place of a row", [
      { name: "For", cell: ([row]) => `#${row.rank}` },
      { name: "Machines", cell: ([, , said]) => [element("span", { class: "value" }, said.machines),
                                                 element("span", { class: "bounds" }, said.where)] },
      { name: "Time", numeric: true, sort: ([, one]) => one.training_time_h, cell: ([, , said]) => said.time },
      { name: "Cost", numeric: true, sort: ([, one]) => one.cost_usd, cell: ([, , said]) => said.cost },
    ], instead));
  }
  if (listed.some((row) => row.extrapolating)) {
    place.append(element("p", { class: "quiet" },
      "* outside what the device model was fitted on: the interval is wider"));
  }
  return drawFrontPlot(rows);
}

function drawFrontPlot(rows) {
  if (!document.getElementById("front-plot")) return Promise.resolve(); // nothing can be rented
  const points = here() ? [...rows, here()] : rows;
  const groups = new Map();
  for (const row of points) {
    const name = wordsOf(keyOf(row)).picked_as || (row.rank === 0 ? "this machine" : unpicked());
    groups.set(name, [...(groups.get(name) || []), row]);
  }
  const named = [...groups].sort(([a], [b]) => (a === unpicked()) - (b === unpicked()));
  const traces = named.map(([name, members], place) => pointsTrace(name, members,
    name === unpicked() ? PLAIN : COLOURS[place % COLOURS.length],
    name === unpicked() ? "circle" : SHAPES[place % SHAPES.length]));
  const instead = others().filter(([, one]) => isWanted(one));
  if (instead.length) {
    traces.unshift({ name: "in place of a row", mode: "markers", customdata: instead.map(([row]) => keyOf(row)),
      x: instead.map(([, one]) => one.training_time_h), y: instead.map(([, one]) => one.cost_usd || freeAt()),
      marker: { symbol: "circle-open", size: 7, color: PLAIN }, hoverinfo: "text",
      hovertext: instead.map(([row, , said]) => [`<b>${plain(said.machines)}</b>`, plain(said.where),
        `time ${said.time}`, `cost ${said.cost}`, `in place of #${row.rank}`].join("<br>")) });
  }
  const chosen = points.filter((row) => keyOf(row) === report.selected);
  traces.push({ x: chosen.map((row) => row.training_time_h.value), y: chosen.map(costOf),
                mode: "markers", name: "selected", hoverinfo: "skip", showlegend: false,
                marker: { symbol: "circle-open", size: 22, color: PLAIN, line: { width: 2 } } });
  return draw("front-plot", traces, { ...frontAxes(points), showlegend: true,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, margin: { l: 60, r: 12, t: 40, b: 48 } })
    .then((node) => { if (node) listen(node); });
}

function unpicked() { return report.data.answer.front.length ? "other candidates" : "nearest misses"; }

function here() { return report.data.answer.here; }

// What is free has no place on a logarithmic axis: it is drawn below what is cheapest, as "free".
function costOf(row) { return row.cost_usd.value || freeAt(); }

function freeAt() {
  const paid = everyRow().map((row) => row.cost_usd.low).filter((cost) => cost > 0);
  return paid.length ? 0.6 * Math.min(...paid) : 1;
}

function isAnyFree() { return everyRow().some((row) => row.cost_usd.value === 0); }

function pointsTrace(name, rows, colour, symbol) {
  const reach = (part, bound) => rows.map((row) => Math.abs(row[part][bound] - row[part].value));
  const bars = (part) => ({ type: "data", symmetric: false, array: reach(part, "high"),
                            arrayminus: reach(part, "low"), thickness: 1.2, width: 4, color: colour });
  return {
    name, mode: "markers+text", customdata: rows.map(keyOf),
    x: rows.map((row) => row.training_time_h.value), y: rows.map(costOf),
    error_x: bars("training_time_h"), error_y: bars("cost_usd"),
    text: rows.map((row) => (row.rank ? `#${row.rank}` : "here")), textposition: "top right",
    marker: { color: colour, symbol, size: 11 },
    hovertext: rows.map((row) => hoverText(wordsOf(keyOf(row)))), hoverinfo: "text",
  };
}

// Plotly reads some tags in texts: names are written without what would make one.
function plain(text) { return String(text).replace(/</g, "‹").replace(/>/g, "›").replace(/&/g, "+"); }

function hoverText(words) {
  return [`<b>${plain(words.machines)}</b>`, plain(words.inside), plain(words.where),
          `time ${words.time[0]} (${range(words.time[1])})`,
          `cost ${words.cost[0]}${words.cost[1] ? ` (${range(words.cost[1])})` : ""}`,
          plain(words.layout.words)].join("<br>");
}

function frontAxes(rows, zoom = null) {
  const spans = ["training_time_h", "cost_usd"].map((part) => {
    const values = rows.flatMap((row) => [row[part].low, row[part].high,
      part === "cost_usd" ? costOf(row) : row[part].value]).filter((value) => value > 0);
    const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0.1, 10];
    const margin = Math.max(0.08 * Math.log10(high / low), 0.05);
    return [Math.log10(low) - margin, Math.log10(high) + margin];
  });
  const width = document.getElementById("front-plot").clientWidth || 700;
  const [x, y] = zoom || spans;
  return {
    xaxis: { ...AXIS, type: "log", title: { text: "training time" }, range: x,
             ...timeTicks(10 ** x[0], 10 ** x[1], width / 70) },
    yaxis: { ...AXIS, type: "log", title: { text: "cost" }, range: y,
             ...costTicks(10 ** y[0], 10 ** y[1]) },
  };
}

function costTicks(low, high) {
  if (!isAnyFree()) return moneyTicks(low, high, 9);
  const paid = moneyTicks(Math.max(low, 1.3 * freeAt()), high, 8);
  return { ...paid, tickvals: [freeAt(), ...paid.tickvals], ticktext: ["free", ...paid.ticktext] };
}

function listen(node) {
  if (node.dataset.listening) return;
  node.dataset.listening = "true";
  node.on("plotly_click", (event) => {
    const key = event.points[0] && event.points[0].customdata;
    if (key && wordsOf(key)) select(key, true);
  });
  node.on("plotly_relayout", (change) => {
    if (!Object.keys(change).some((name) => name.startsWith("xaxis.") || name.startsWith("yaxis."))) return;
    if ("xaxis.tickvals" in change) return;
    const { xaxis, yaxis } = node.layout;
    const width = node.clientWidth || 700;
    const at = (axis) => axis.range.map((bound) => 10 ** bound);
    const [x, y] = [timeTicks(...at(xaxis), width / 70), costTicks(...at(yaxis))];
    const ticks = (name, found) => Object.fromEntries(
      Object.entries(found).map(([field, value]) => [`${name}.${field}`, value]));
    window.Plotly.relayout(node, { ...ticks("xaxis", x), ...ticks("yaxis", y) });
  });
}
