// One candidate in full: numbers, where time and money go, its layout, why, and from where.

function drawCandidate() {
  const key = report.selected;
  const row = key && rowOf(key);
  if (!row) { fill("candidate"); return; }
  const words = wordsOf(key);
  const name = row.rank ? `#${row.rank}` : "here";
  fill("candidate",
    title("candidate", `${name}: ${words.machines}`),
    element("p", { class: "quiet" }, [words.inside, words.where, words.standing].filter(Boolean).join(", "),
      words.picked_as && element("span", { class: "badge aside" }, words.picked_as)),
    fold("numbers", "Its numbers", !isNarrow(), definitions([
      ["time", withBounds(words.time)], ["cost", withBounds(words.cost)],
      ["a step", withBounds(words.step)], ["throughput", words.throughput],
      ["memory of a device", words.memory], ["price", priceText(row)], ...unitPairs(row.units),
      ["missing the deadline", row.late_probability === null ? "" : `${percent(row.late_probability)} chance`],
    ])),
    fold("parts", "Where time and cost go", false,
      element("div", { class: "columns" }, partsTable(row, words), sharesTable(row, words))),
    memoryPart(row),
    fold("layout", `Layout: ${words.layout.words}`, false, layoutPart(words.layout)),
    reasons(row), alternatives(words), facts(row));
  if (words.layout.schedule) drawSchedule(words.layout.schedule);
}

function withBounds([value, bounds]) { return bounds ? `${value} (${range(bounds)})` : value; }

function priceText(row) {
  const bills = row.bills.map((bill) => `$${money(bill.price_usd_per_h)}/h ${bill.pricing}`);
  return [...new Set(bills)].join(", ");
}

function money(value) {
  return value >= 1 ? value.toLocaleString("en-US", { maximumFractionDigits: 2 }) : Number(value.toPrecision(3));
}

function unitPairs(units) {
  if (!units) return [];
  const whole = (value) => Math.round(value).toLocaleString("en-US");
  return [
    ["tokens", units.tokens_per_s && `${whole(units.tokens_per_s)} tokens/s`],
    ["model flop utilisation", units.utilisation && percent(units.utilisation.fraction)],
    ["accelerator-hours", units.accelerator_hours && whole(units.accelerator_hours)],
  ];
}

const WORTH_SAYING = 0.001;

function partsTable(row, words) {
  const [time, cost] = [row.training_time_h.value, row.cost_usd.value];
  const share = (value, whole) => (value && whole ? value / whole : 0);
  const rows = Object.entries(row.breakdown).filter(([, part]) => (
    share(part.time_h, time) > WORTH_SAYING || share(part.cost_usd, cost) > WORTH_SAYING));
  if (!rows.length) return null;
  return element("div", {}, element("h3", {}, "The whole job"),
    table("Where time and cost go", [
      { name: "Part", cell: ([name]) => words.parts[name].label },
      { name: "Time", numeric: true, cell: ([name, part]) => [words.parts[name].time || "–", bar(share(part.time_h, time))] },
      { name: "Cost", numeric: true, cell: ([name, part]) => [part.cost_usd === null ? "not priced" : words.parts[name].cost || "–",
                                                              bar(share(part.cost_usd, cost), "cost")] },
    ], rows));
}

function sharesTable(row, words) {
  const rows = Object.entries(row.shares).filter(([, share]) => share >= WORTH_SAYING).sort(([, a], [, b]) => b - a);
  if (!rows.length) return null;
  return element("div", {}, element("h3", {}, "What a step goes to"),
    table("What a step goes to", [
      { name: "Waiting for", cell: ([name]) => words.waits[name] || name },
      { name: "Share", numeric: true, cell: ([, share]) => [percent(share), bar(share)] },
    ], rows));
}

// Memory of a device, term by term, on a bar as long as what it has.
function memoryPart(row) {
  const held = row.memory;
  if (!held || !held.terms_gib) return null;
  const sum = (terms) => Object.values(terms).reduce((whole, gib) => whole + gib, 0);
  const devices = Object.entries(held.stages_gib || { "fullest device": held.terms_gib });
  const onDevice = ([name]) => !name.startsWith("host_");
  const terms = Object.keys(held.equations);
  const longest = Math.max(row.device_memory_gib || 0, ...devices.map(([, of]) => sum(Object.fromEntries(Object.entries(of).filter(onDevice)))));
  const hue = (name) => `hsl(${Math.round(terms.indexOf(name) * 137.5) % 360} 55% 52%)`;
  const piece = ([name, gib]) => {
    const node = element("span", { title: `${name}: ${gib.toPrecision(3)} GiB` });
    node.style.width = `${(100 * gib / longest).toFixed(2)}%`;
    node.style.background = hue(name);
    return node;
  };
  const key = (name) => { const dot = element("span", { class: "key" }); dot.style.background = hue(name); return dot; };
  const needed = held.read_gib.needed;
  const likely = held.fits_probability === undefined ? "" : `, fits with ${percent(held.fits_probability)}`;
  return fold("memory", `Memory: needs ${needed.value.toPrecision(3)} GiB (${needed.low.toPrecision(3)}–${needed.high.toPrecision(3)})${likely}`, false,
    devices.map(([label, of]) => element("div", {}, element("p", { class: "quiet" }, label),
      element("div", { class: "stack", role: "img", "aria-label": `memory of the ${label} by term` }, Object.entries(of).filter(onDevice).map(piece)))),
    table("Memory by term", [
      { name: "Term", cell: ([name]) => [key(name), ` ${name.replaceAll("_", " ")}`] },
      { name: "GiB", numeric: true, cell: ([, gib]) => gib.toPrecision(3) },
      { name: "Equation", wide: true, cell: ([name]) => `${held.equations[name]} (${held.sources[name]})` },
    ], Object.entries(held.terms_gib)));
}

function layoutPart(layout) {
  const pieces = layout.instances.map((one) => element("li", { class: "instance" },
    element("span", { class: "instance-name" }, one.label),
    element("span", { class: "cells" }, one.cells.map((cell) => deviceCell(cell, layout))),
    one.cells_in_all > one.cells.length && element("span", { class: "quiet" }, `and ${one.cells_in_all - one.cells.length} more`)));
  const rest = layout.instances_in_all - layout.instances.length;
  const schedule = layout.schedule;
  return [
    element("p", {}, `${layout.words}; ${layout.devices} ${layout.devices === 1 ? "device" : "devices"}.`,
      layout.devices > 1 && ` A box is a device: ${meaning(layout)}.`),
    element("ul", { class: "instances" }, pieces),
    rest > 0 && element("p", { class: "quiet" }, `and ${rest} more machines in the same order`),
    schedule && [
      element("h3", {}, "One step of the pipeline"),
      element("p", { class: "quiet" }, `${schedule.name}: ${schedule.stages} stages, ${schedule.micro_batches} micro-batches`
        + `${schedule.drawn < schedule.micro_batches ? `, of which ${schedule.drawn} are drawn` : ""}. `
        + `Even stages wait ${percent(schedule.bubble_fraction)} of the ideal time; a backward pass is drawn twice as long as a forward one.`),
      frame("schedule-plot", `Passes of ${schedule.drawn} micro-batches over ${schedule.stages} pipeline stages`,
            scheduleHeight(schedule)),
    ],
  ];
}

const LETTERS = [["pp", "s", "its pipeline stage"], ["dp", "r", "its replica of the model"],
                 ["cp", "c", "its part of a sequence"], ["tp", "t", "its part of every layer"]];

function used(layout) {
  const found = LETTERS.filter(([name]) => layout.degrees.includes(name));
  return found.length ? found : LETTERS.slice(1, 2);
}

function meaning(layout) { return used(layout).map(([, letter, what]) => `${letter} is ${what}`).join(", "); }

function deviceCell([stage, replica, context, tensor], layout) {
  const ranks = { pp: stage, dp: replica, cp: context, tp: tensor };
  const label = used(layout).map(([name, letter]) => `${letter}${ranks[name]}`).join(" ");
  return element("span", { class: `cell tone-${stage % 6}` }, label);
}

function scheduleHeight(schedule) { return Math.min(70 + 28 * schedule.stages, 520); }

const PASSES = [["forward", "var(--blue)"], ["backward", "var(--orange)"]];

function drawSchedule(schedule) {
  const last = Math.max(...schedule.passes.map((pass) => pass[2]));
  const stages = Array.from({ length: schedule.stages }, (_, stage) => [stage + 0.5, `stage ${stage}`]);
  const label = `Passes of ${schedule.drawn} micro-batches over ${schedule.stages} pipeline stages`;
  draw("schedule-plot", (width) => {
    const height = scheduleHeight(schedule);
    const plot = plane(width, height,
      { bounds: [0, last], ticks: evenTicks, title: "time, in forward passes of a stage" },
      { bounds: [schedule.stages, 0], ticks: () => stages, title: "" });
    const marks = schedule.passes.map((pass) => passMark(plot, schedule, pass));
    return [legend(PASSES.map(([name, colour]) => [name, svg("rect", { width: 14, height: 14, fill: colour })])),
            picture(width, height, label, plot.axes, svg("g", { class: "passes" }, marks))];
  });
}

function passMark({ x, y }, schedule, [stage, begin, end, isBackward, batch, chunk]) {
  const [name, colour] = PASSES[Number(isBackward)];
  const [top, bottom] = [y(stage + 0.12), y(stage + 0.88)];
  const isWide = x(end) - x(begin) > 7 * String(batch).length + 4;
  return svg("g", {},
    svg("title", {}, `${name} pass of micro-batch ${batch}${schedule.chunks > 1 ? `, chunk ${chunk},` : ""} on stage ${stage}`),
    svg("rect", { class: "pass", x: x(begin), y: top, width: x(end) - x(begin), height: bottom - top, fill: colour }),
    isWide && svg("text", { x: (x(begin) + x(end)) / 2, y: (top + bottom) / 2 + 4, "text-anchor": "middle" }, String(batch)));
}

function reasons(row) {
  if (!row.reasons.length) return null;
  return fold("reasons", "Why it is on the list, and what it assumes", false,
    element("ul", { class: "plain" }, [...new Set(row.reasons)].map((said) => element("li", {}, flagged(prose(said))))));
}

function alternatives(words) {
  if (!words.alternatives.length) return null;
  return fold("alternatives", "What the model cannot tell apart from it", false, table("Alternatives", [
    { name: "Machines", cell: (one) => [element("span", { class: "value" }, one.machines),
                                        element("span", { class: "bounds" }, one.where)] },
    { name: "Time", numeric: true, cell: (one) => one.time },
    { name: "Cost", numeric: true, cell: (one) => one.cost },
  ], words.alternatives));
}

function facts(row) {
  if (!row.sources || !row.sources.length) return null;
  return fold("facts", "Where its numbers are from", false, table("Where its numbers are from", [
    { name: "Source", cell: (one) => element("span", { class: `source source-${one.source.replace(" ", "-")}` }, one.source) },
    { name: "Number", cell: (one) => [one.what, element("span", { class: "narrow-only value" }, one.value),
                                      element("span", { class: "bounds" }, flagged(one.note))] },
    { name: "Value", wide: true, cell: (one) => one.value },
  ], row.sources));
}
