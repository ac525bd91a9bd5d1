// Plotly: unpacked when the words stand already, and what all charts share.

// Okabe and Ito's colours, told apart with any colour vision; shapes say the same.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const SHAPES = ["diamond", "square", "triangle-up", "star", "hexagon", "circle"];
const PLAIN = "#8a8f98";
let unpacking = null;

function plotly() {
  unpacking = unpacking || unpack();
  return unpacking;
}

async function unpack() {
  const packed = atob(document.getElementById("plotly").textContent);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i += 1) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  return window.Plotly;
}

const AXIS = { zeroline: false, showline: true, ticks: "outside", ticklen: 4, automargin: true, ticklabeloverflow: "allow",
               linecolor: PLAIN, tickcolor: PLAIN, gridcolor: "rgba(138,143,152,.25)" };

function layoutOf(more) {
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
    font: { family: "system-ui, sans-serif", size: 12.5 }, colorway: COLOURS,
    margin: { l: 56, r: 12, t: 8, b: 44 }, showlegend: false, dragmode: "zoom",
    hoverlabel: { align: "left", bgcolor: "#ffffff", bordercolor: PLAIN,
                  font: { color: "#1b1f24", size: 13 } },
  };
  return { ...base, ...more };
}

const CONFIG = {
  responsive: true, displaylogo: false, showTips: false, scrollZoom: false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};

// A chart's frame: the drawing, and words for those who do not see it.
function frame(id, label, height) {
  const node = element("div", { id, class: "plot", role: "img", "aria-label": label });
  node.style.height = `${height}px`;
  return node;
}

// One chart after the other, each in a task of its own: the page answers in between.
let queue = Promise.resolve();

function draw(id, traces, layout, config = {}) {
  const drawn = queue.then(() => new Promise((resolve) => { setTimeout(resolve); })).then(async () => {
    const library = await plotly();
    const node = document.getElementById(id);
    if (!node) return null;
    await library.react(node, traces, layoutOf(layout), { ...CONFIG, ...config });
    performance.mark(`advisor:${id}`);
    return node;
  });
  queue = drawn.catch(() => null);
  return drawn;
}

// Round durations for a logarithmic axis, as many as are legible between two bounds [h].
const DURATIONS = [
  ["s", 1 / 3600, [1, 2, 5, 10, 20, 30]], ["min", 1 / 60, [1, 2, 5, 10, 20, 30]],
  ["h", 1, [1, 2, 3, 6, 12]], ["d", 24, [1, 2, 4, 7, 14, 30, 60, 120, 365]],
].flatMap(([unit, size, counts]) => counts.map((n) => [n * size, `${n} ${unit}`]));

function timeTicks(low, high, most) {
  const round = DURATIONS.filter(([at]) => at >= low && at <= high);
  return thinned(round.length > 1 ? round : between(low, high, durationText), most);
}

function durationText(hours) {
  const [unit, size] = [["d", 24], ["h", 1], ["min", 1 / 60], ["s", 1 / 3600]].find(([, at]) => hours >= at)
    || ["s", 1 / 3600];
  return `${Number((hours / size).toPrecision(3))} ${unit}`;
}

function moneyTicks(low, high, most) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const lead of [1, 2, 5]) found.push(Number((lead * 10 ** power).toPrecision(1)));
  }
  const round = found.filter((at) => at >= low && at <= high).map((at) => [at, moneyText(at)]);
  return thinned(round.length > 1 ? round : between(low, high, moneyText), most);
}

function moneyText(usd) {
  return `$${usd >= 1 ? Number(usd.toPrecision(3)).toLocaleString("en-US") : Number(usd.toPrecision(2))}`;
}

// Zoomed in so far that no round value is left: four values at equal distances.
function between(low, high, text) {
  return [0.1, 0.37, 0.63, 0.9].map((share) => low * (high / low) ** share).map((at) => [at, text(at)]);
}

function thinned(ticks, most) {
  const each = Math.max(Math.ceil(ticks.length / most), 1);
  const kept = ticks.filter((_, place) => place % each === 0);
  return { tickmode: "array", tickvals: kept.map(([at]) => at), ticktext: kept.map(([, text]) => text) };
}

// Charts are drawn for the screen; on paper they have its width.
function fitPaper(isPaper) {
  if (!window.Plotly) return;
  for (const node of document.querySelectorAll(".js-plotly-plot")) {
    const width = node.closest(".small-plots") ? 320 : 660;
    window.Plotly.relayout(node, isPaper ? { width, autosize: false } : { width: null, autosize: true });
  }
}
