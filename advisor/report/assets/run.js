// What would change the answer, the recorded run, and where everything is from.

function drawChanges() {
  const { answer, advice, words } = report.data;
  const parts = [];
  if (report.isWaiting) {
    return section("changes", "What would change it", true,
      element("p", { class: "empty", role: "status" }, "The job is being priced with each change …"));
  }
  if (answer.changes.length) {
    parts.push(table("What would change the choice", [
      { name: "Change", cell: ([one, said]) => [one.do, said.pick && element("span", { class: "bounds" }, `then rent ${said.pick}`)] },
      { name: "Time", numeric: true, cell: ([, said]) => interval(said.time) },
      { name: "Cost", numeric: true, cell: ([, said]) => interval(said.cost) },
    ], answer.changes.map((one, place) => [one, words.changes[place]]), { most: 3 }));
  }
  if (advice && advice.advice.length) {
    parts.push(fold("advice", `Advice on the job (${advice.advice.length})`, false,
      element("ol", { class: "advice" }, advice.advice.map((one, place) => adviceItem(one, words.advice[place])))));
  } else if (advice) {
    parts.push(element("p", { class: "empty" }, "Nothing of what is known of the job says that a change of it would pay."));
  }
  return section("changes", "What would change it", !isNarrow(), parts);
}

const EVIDENCE = { measured: "measured", table: "from a published table", formula: "computed" };

function adviceItem(one, said) {
  const does = { flag: "Add", lines: "Write", yaml: "Paste" }[one.how.kind] || "Paste";
  return element("li", {},
    element("p", {}, element("span", { class: "value" }, one.change)),
    element("p", { class: "quiet" }, `time saved: ${prose(said.time)}; cost saved: ${prose(said.cost)}; `
      + `${EVIDENCE[one.evidence] || one.evidence}; ${one.model_kept ? "the same is learned" : "what is learned may differ"}`),
    element("details", {}, element("summary", {}, "How, and what it rests on"),
      element("p", {}, `${does}:`), element("pre", {}, element("code", {}, one.how.text)),
      element("p", {}, `Rests on: ${one.rests_on}`), element("p", {}, `Holds when: ${one.condition}`)));
}

function drawCluster() {
  const own = report.data.words.own_cluster;
  if (!own) return fill("cluster");
  return section("cluster", "Your own cluster", true, element("p", { class: "quiet" }, own.line),
    table("Your own cluster", [
      { name: "Devices", cell: (way) => way.devices },
      { name: "Computing", numeric: true, cell: (way) => interval(way.computing) },
      { name: "Waits (10–90 %)", numeric: true, cell: (way) => way.waits },
      { name: "Done after (10–90 %)", numeric: true, cell: (way) => way.done },
    ], own.ways),
    own.ways.map((way) => [element("h3", {}, `Rent or wait, against ${way.devices} of your own cluster`),
      table("Rent or wait", [
        { name: "#", cell: (rent) => rent.rank },
        { name: "Renting it", cell: (rent) => rent.saves },
        { name: "Verdict", cell: (rent) => rent.verdict },
      ], way.rents)]));
}

function drawRun() {
  const { run } = report.data;
  if (!run) {
    section("run", "The run", false,
      element("p", { class: "empty" }, "No run was recorded: the job was described, and nothing of it was measured. "
        + "Record one with: advisor profile train.py"));
    return;
  }
  const plots = runPlots(run);
  section("run", "The run", false,
    element("p", { class: "quiet" }, [run.run, run.started_at, run.host.cpu_model, ...run.host.gpus].filter(Boolean).join(", ")),
    run.command && element("pre", {}, element("code", {}, run.command)),
    element("div", { class: "small-plots" }, plots.map((one) => element("figure", {},
      element("figcaption", {}, one.name), frame(one.id, one.label, 220)))),
    !run.ranks.length && element("p", { class: "empty" }, "No training step was seen in this run."),
    !run.readings.t_s.length && element("p", { class: "empty" }, "The run ended before its second reading: its resources are not known."),
    run.readings.t_s.length > 0 && element("p", { class: "quiet" }, notSeen(run.readings)),
    element("details", {}, element("summary", {}, "What was learned from it"),
      element("ul", { class: "plain" }, run.lines.map((line) => element("li", {}, line)))));
  for (const one of plots) draw(one.id, lines(one.label, ...axesOf(one), one.series));
}

function axesOf({ series, x, y }) {
  const every = (name) => series.flatMap((one) => one[name]).filter((value) => value !== null);
  const [times, values] = [every("x"), every("y")];
  return [{ bounds: [Math.min(...times), Math.max(...times)], ticks: evenTicks, title: x },
          { bounds: [0, 1.05 * Math.max(...values) || 1], ticks: evenTicks, title: y }];
}

function isSeen(values) { return Boolean(values) && values.some((value) => value !== null); }

function notSeen(readings) {
  const isQuiet = ![readings.network_received_bytes_per_s, readings.network_sent_bytes_per_s].some(isAny);
  return [!isSeen(readings.gpu_fraction) && "No GPU was read in this run.",
          isQuiet && "Nothing went over the network."].filter(Boolean).join(" ");
}

function isAny(values) { return Boolean(values) && values.some((value) => value > 0); }

function runPlots(run) {
  const { t_s: t, ...seen } = run.readings;
  const found = [];
  const line = (name, y, place) => ({ name, x: t, y, colour: COLOURS[place], dash: DASHES[place] });
  const overTime = (id, name, y, series) => {
    const shown = series.filter(([, values]) => isSeen(values));
    if (!t.length || !shown.length) return;
    found.push({ id, name, y, x: "seconds since the start", label: `${name} over time`,
                 series: shown.map(([of, values, scale], place) => line(of, values.map((v) => (v === null ? null : v / scale)), place)) });
  };
  if (run.ranks.length) found.push(stepsPlot(run));
  overTime("cpu-plot", "Processor", "cores busy", [["cores", seen.cpu_cores, 1]]);
  overTime("memory-plot", "Memory", "GiB", [["memory", seen.memory_bytes, 2 ** 30]]);
  overTime("gpu-plot", "GPU", "% busy", [["GPU", seen.gpu_fraction, 0.01]]);
  overTime("gpu-memory-plot", "GPU memory", "GiB", [["GPU memory", seen.gpu_memory_bytes, 2 ** 30]]);
  overTime("gpu-power-plot", "GPU power", "W", [["GPU power", seen.gpu_power_w, 1]]);
  overTime("disk-plot", "Disk", "MB/s", [["read", seen.disk_read_bytes_per_s, 1e6], ["written", seen.disk_write_bytes_per_s, 1e6]]);
  if (isAny(seen.network_received_bytes_per_s) || isAny(seen.network_sent_bytes_per_s)) overTime("network-plot", "Network", "MB/s", [["received", seen.network_received_bytes_per_s, 1e6], ["sent", seen.network_sent_bytes_per_s, 1e6]]);
  return found;
}

function stepsPlot(run) {
  const series = run.ranks.map((rank, place) => ({
    name: run.ranks.length > 1 ? `rank ${rank.rank}` : "steps", colour: COLOURS[place % COLOURS.length],
    x: rank.mean_s.map((_, at) => 1 + at * rank.steps_per_point), y: rank.mean_s.map((s) => 1000 * s),
  }));
  if (run.step_time) {
    const settled = 1000 * run.step_time.corrected_s;
    const last = Math.max(...run.ranks.map((rank) => rank.steps));
    series.push({ name: "settled", x: [1, last], y: [settled, settled], colour: COLOURS[1], dash: DASHES[2] });
  }
  const each = Math.max(...run.ranks.map((rank) => rank.steps_per_point));
  return { id: "steps-plot", name: each > 1 ? `Steps (mean of ${each})` : "Steps", x: "step", y: "ms", series,
           label: "Time of the recorded steps in order" };
}

function drawSources() {
  const { answer, words, models, asked } = report.data;
  const rejected = Object.entries(answer.rejected).sort(([, a], [, b]) => b - a);
  const error = answer.known_error;
  const notes = [...answer.shared_reasons.map((one) => `For every candidate: ${one}`), ...(answer.job.assumptions || []), ...(answer.serving ? [answer.serving] : []), ...answer.notes];
  section("sources", "Where it is from", false,
    definitions([
      ["prices", words.prices.replace(/^prices /, "")], ["offers", answer.catalogue.offers.toLocaleString("en-US")],
      ["candidates", answer.considered.toLocaleString("en-US")], ["predictor", `${answer.predictor.name} ${answer.predictor.version}`],
      ["usual error", error && `${percent(error.median_ape_fraction)} (${error.family})`],
    ]),
    rejected.length > 0 && [element("h3", {}, "Why the others are not on the list"), table("Candidates left out", [
      { name: "They", sort: ([name]) => words.rejected[name] || name, cell: ([name]) => flagged(words.rejected[name] || name) },
      { name: "Candidates", numeric: true, sort: ([, count]) => count, cell: ([, count]) => count.toLocaleString("en-US") },
    ], rejected)],
    notes.length > 0 && [element("h3", {}, "Notes and assumptions"), element("ul", { class: "plain" }, notes.map((note) => element("li", {}, flagged(note))))],
    Object.keys(asked).length > 0 && [element("h3", {}, "What was asked"),
      definitions(Object.entries(asked).map(([name, value]) => [name, Array.isArray(value) ? value.join(", ") : String(value)]))],
    models.length > 0 && [element("h3", {}, "Model cards"), models.map((one) => element("details", {},
      element("summary", {}, `${one.name}: ${one.answers}${one.day ? ` (${one.day})` : ""}${one.is_own ? ", fitted by you" : ""}`),
      element("pre", {}, one.card)))]);
}
