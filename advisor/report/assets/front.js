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
  if (!lead && answer.nearest.length) more.push("The nearest misses are listed.");
  if (lead && !answer.front.length) {
    const listed = answer.nearest.length ? "; the nearest misses are listed" : "";
    more.push(`Nothing that can be rented satisfies the constraints${listed}.`);
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
    report.live && element("div", { id: "handover", role: "group", "aria-label": "Take it along" }),
    element("p", { class: "quiet" }, flagged(words.job)),
    picks.size > 0 && element("div", { class: "picks" }, [...picks].map(([key, names]) => pickCard(key, names))),
    !shownRows().length && element("p", { class: "empty" }, "No candidate is left to show; the reasons are listed below."));
}

function pickCard(key, names) {
  if (!wordsOf(key)) return null;
  return element("button", { type: "button", class: "card", "data-pick": key,
                             onclick: () => select(key, true) },
    element("span", { class: "card-name", style: `color: ${lookOf(key).colour}` }, names.join(", ")), candidateCard(key));
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

const FRONT_LABEL = "Training time against cost of every candidate; the table below has the same numbers.";
let zoom = null; // bounds of time [h] and of cost [USD] that were drawn over the chart

function frontHeight() { return isNarrow() ? 270 : 350; }

function drawFront() {
  const rows = shownRows();
  zoom = null;
  if (!rows.length) return fill("front");
  const { answer } = report.data;
  const coverage = percent(rows[0].cost_usd.coverage);
  return fill("front",
    title("front", answer.front.length ? "Time against cost" : "The nearest misses"),
    element("p", { class: "quiet" }, `Each point is a set of machines; bars are ${coverage} intervals. `
      + (isNarrow() ? "Choose a point or a row to see it in full."
        : "Drag to zoom, double-click to zoom out, choose a point or a row to see it in full.")),
    filters(),
    frame("front-plot", FRONT_LABEL, frontHeight()),
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
  return groups.length ? fold("filters", "Filter", isFiltering(), element("div", { class: "filters" }, groups,
    element("p", { class: "quiet", id: "filter-count", role: "status" }))) : null;
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
  if (!place) return;
  const words = (row) => wordsOf(keyOf(row));
  place.replaceChildren(listed.length ? table("Candidates", [
    { name: "#", cell: (row) => row.rank || "here", sort: (row) => row.rank || Infinity },
    { name: "Machines", sort: (row) => words(row).machines, cell: (row) => [
      element("span", { class: "value" }, words(row).machines, row.extrapolating ? " *" : ""),
      element("span", { class: "bounds inside" }, `${words(row).inside}, ${words(row).where}`),
      words(row).picked_as && element("span", { class: "badge" }, words(row).picked_as)] },
    { name: "Time", numeric: true, sort: (row) => row.training_time_h.value, cell: (row) => interval(words(row).time) },
    { name: "Cost", numeric: true, sort: (row) => row.cost_usd.value, cell: (row) => interval(words(row).cost) },
    { name: "Layout", wide: true, sort: (row) => words(row).layout.degrees, cell: (row) => words(row).layout.degrees },
    { name: "Mostly", wide: true, sort: (row) => row.bottleneck, cell: (row) => row.bottleneck },
  ], listed, { most: isNarrow() ? 3 : 6, key: keyOf, selected: () => report.selected, pick: (key) => select(key),
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
  drawFrontPlot(rows);
}

function drawFrontPlot(rows) {
  const points = here() ? [...rows, here()] : rows;
  const groups = new Map();
  for (const row of points) {
    const name = wordsOf(keyOf(row)).picked_as || (row.rank === 0 ? "this machine" : unpicked());
    groups.set(name, [...(groups.get(name) || []), row]);
  }
  const named = [...groups].map(([name, members]) => ({ name, members, ...lookOf(keyOf(members[0])) }))
    .sort((a, b) => a.place - b.place);
  const instead = others().filter(([, one]) => isWanted(one));
  const marks = named.map(({ name, colour, form }) => [name, shape(form, 7, 7, 5, { fill: colour })]);
  if (instead.length) marks.push(["in place of a row", shape("circle", 7, 7, 4, { fill: "none", stroke: PLAIN })]);
  draw("front-plot", (width, node) => {
    const plot = plane(width, frontHeight(), ...frontAxes(points));
    const parts = [svg("rect", { class: "band", ...boxOf(plot) }),
      ...instead.map(([row, one, said]) => insteadMark(plot, row, one, said)),
      ...named.flatMap(({ members, colour, form }) => members.map((row) => point(plot, row, colour, form)))];
    const image = picture(width, frontHeight(), FRONT_LABEL,
      svg("clipPath", { id: "front-area" }, svg("rect", boxOf(plot))), plot.axes,
      svg("g", { class: "marks", "clip-path": "url(#front-area)" }, parts));
    zoomable(image, plot, () => redraw(node));
    return [legend(marks) || "", image, zoom ? element("button", { type: "button", class: "zoom-out",
      onclick: () => { zoom = null; redraw(node); } }, "Zoom out") : ""];
  });
}

// By what a candidate is picked as, the weightiest first; not by its place among them.
function lookOf(key) {
  const { picks } = report.data.answer;
  const roles = Object.keys(SHAPES);
  const role = roles.find((one) => String(picks[one]) === key || one === key);
  return { place: role ? roles.indexOf(role) : roles.length, colour: role ? `var(--${role.replace("_", "-")})` : PLAIN, form: SHAPES[role] || "circle" };
}

function boxOf({ box }) {
  return { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top };
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

// A candidate: its intervals as bars, its shape, its name, and all of it in words on hover.
function point(plot, row, colour, form) {
  const [x, y] = [plot.x(row.training_time_h.value), plot.y(costOf(row))];
  const [time, cost] = [row.training_time_h, row.cost_usd];
  const isChosen = keyOf(row) === report.selected;
  return svg("g", { class: "point", "data-point": keyOf(row), onclick: () => select(keyOf(row), true) },
    svg("title", {}, titleOf(wordsOf(keyOf(row)))),
    svg("path", { class: "bars", stroke: colour, d: whisker(plot.x(time.low), plot.x(time.high), y, false)
      + (cost.value ? whisker(plot.y(cost.low), plot.y(cost.high), x, true) : "") }),
    isChosen && svg("circle", { class: "ring", cx: x, cy: y, r: 12 }),
    shape(form, x, y, 6, { fill: colour }),
    svg("circle", { class: "band", cx: x, cy: y, r: 13 }), // large enough for a finger
    svg("text", x > plot.box.right - 36 ? { x: x - 9, y: y - 8, "text-anchor": "end" } : { x: x + 9, y: y - 8 }, row.rank ? `#${row.rank}` : "here"));
}

function whisker(low, high, at, isUpright) {
  return isUpright ? `M${at} ${low}V${high}M${at - 3} ${low}h6M${at - 3} ${high}h6`
    : `M${low} ${at}H${high}M${low} ${at - 3}v6M${high} ${at - 3}v6`;
}

function insteadMark(plot, row, one, said) {
  return svg("g", { class: "point", "data-instead": keyOf(row), onclick: () => select(keyOf(row), true) },
    svg("title", {}, [said.machines, said.where, `time ${said.time}`, `cost ${said.cost}`, `in place of #${row.rank}`].join("\n")),
    shape("circle", plot.x(one.training_time_h), plot.y(one.cost_usd || freeAt()), 4, { fill: "none", stroke: PLAIN }));
}

function titleOf(words) {
  return [words.machines, words.inside, words.where, `time ${withBounds(words.time)}`,
          `cost ${withBounds(words.cost)}`, words.layout.words].join("\n");
}

function frontAxes(rows) {
  const spans = ["training_time_h", "cost_usd"].map((part) => {
    const values = rows.flatMap((row) => [row[part].low, row[part].high,
      part === "cost_usd" ? costOf(row) : row[part].value]).filter((value) => value > 0);
    const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0.1, 10];
    const margin = Math.max((high / low) ** 0.08, 1.12);
    return [low / margin, high * margin];
  });
  const [time, cost] = zoom || spans;
  return [{ isLog: true, bounds: time, ticks: timeTicks, title: "training time" },
          { isLog: true, bounds: cost, ticks: costTicks, title: "cost" }];
}

function costTicks(low, high, most) {
  if (!isAnyFree()) return moneyTicks(low, high, most);
  const paid = moneyTicks(Math.max(low, 1.3 * freeAt()), high, most - 1);
  return low <= freeAt() ? [[freeAt(), "free"], ...paid] : paid;
}

// Whoever draws a rectangle over the chart looks at what lies in it; a double click goes back.
const LEAST_PX = 8; // a shorter drag is a click

function zoomable(image, plot, again) {
  let from = null;
  const mark = svg("rect", { class: "zoom-box", visibility: "hidden" });
  image.append(mark);
  const at = (event) => {
    const frame = image.getBoundingClientRect();
    const grown = image.viewBox.baseVal.width / frame.width;
    const inside = (value, low, high) => Math.min(Math.max(value, low), high);
    return [inside((event.clientX - frame.x) * grown, plot.box.left, plot.box.right),
            inside((event.clientY - frame.y) * grown, plot.box.top, plot.box.bottom)];
  };
  const corners = (event) => {
    const to = at(event);
    return [0, 1].map((axis) => [from[axis], to[axis]].sort((a, b) => a - b));
  };
  image.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && event.pointerType === "mouse") from = at(event);
  });
  image.addEventListener("pointermove", (event) => {
    if (!from) return;
    event.preventDefault();
    const [[left, right], [top, bottom]] = corners(event);
    for (const [name, value] of Object.entries({ visibility: "visible", x: left, y: top,
                                                 width: right - left, height: bottom - top })) mark.setAttribute(name, value);
  });
  const end = (event) => {
    if (!from) return;
    const [[left, right], [top, bottom]] = corners(event);
    from = null;
    mark.setAttribute("visibility", "hidden");
    if (right - left < LEAST_PX || bottom - top < LEAST_PX) return;
    zoom = [[plot.atX(left), plot.atX(right)], [plot.atY(bottom), plot.atY(top)]];
    again();
  };
  image.addEventListener("pointerup", end);
  image.addEventListener("pointerleave", end);
  image.addEventListener("dblclick", () => { zoom = null; again(); });
}
