// Charts as SVG: axes, scales, and what all of them share. What a mark means stands in its title.

// The page's colours (advisor/show/palette.py), told apart with any colour vision; shapes say the same.
const COLOURS = ["blue", "orange", "green", "pink", "amber", "cyan"].map((hue) => `var(--${hue})`);
const SHAPES = { best_value: "diamond", fastest: "square", cheapest: "triangle", within_deadline: "star", here: "hexagon", dated: "pentagon" };
const PLAIN = "var(--quiet)";
const DASHES = [null, "2 3", "6 4"];

// A chart's frame: the drawing, and words for those who do not see it.
function frame(id, label, height) {
  const node = element("div", { id, class: "plot", "data-label": label });
  node.style.minHeight = `${height}px`;
  return node;
}

// What is drawn in a frame, drawn again whenever its width changes: a fold was opened, a phone turned.
const drawings = new WeakMap();
const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) if (String(target.clientWidth) !== target.dataset.width) redraw(target);
});

function draw(id, render) {
  const node = document.getElementById(id);
  if (!node) return; // a page without this chart
  drawings.set(node, render);
  redraw(node);
  widths.observe(node);
}

function redraw(node) {
  const width = node.clientWidth;
  node.dataset.width = width;
  if (width) node.replaceChildren(...drawings.get(node)(width, node));
}

function picture(width, height, label, ...children) {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": label }, ...children);
}

// --- axes. An axis: {bounds: [low, high], isLog, ticks(low, high, most) -> [[value, text]], title}

// Points of a plane: `x(value)` and `y(value)` in pixels, `atX(pixel)` and `atY(pixel)` back again.
function plane(width, height, xAxis, yAxis, { left = null, top = 8, right = 14 } = {}) {
  const bottom = 44;
  const rows = yAxis.ticks(...yAxis.bounds, Math.max(Math.floor(height / 55), 2));
  const widest = Math.max(...rows.map(([, text]) => text.length), 1);
  const box = { left: left ?? 34 + 7 * widest, top, right: width - right, bottom: height - bottom };
  const columns = xAxis.ticks(...xAxis.bounds, Math.max(Math.floor((box.right - box.left) / 70), 2));
  const [x, atX] = scale(xAxis, box.left, box.right);
  const [y, atY] = scale(yAxis, box.bottom, box.top);
  const middle = (box.top + box.bottom) / 2;
  const axes = svg("g", { class: "axes" },
    columns.map(([value, text]) => [
      svg("line", { class: "grid", x1: x(value), x2: x(value), y1: box.top, y2: box.bottom }),
      svg("text", { class: "xtick", x: x(value), y: box.bottom + 18, "text-anchor": "middle" }, text)]),
    rows.map(([value, text]) => [
      svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }),
      svg("text", { class: "ytick", x: box.left - 7, y: y(value) + 4, "text-anchor": "end" }, text)]),
    svg("path", { class: "axis", d: `M${box.left} ${box.top}V${box.bottom}H${box.right}` }),
    svg("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, xAxis.title),
    yAxis.title && svg("text", { x: 13, y: middle, "text-anchor": "middle", transform: `rotate(-90 13 ${middle})` }, yAxis.title));
  return { box, axes, x, y, atX, atY };
}

function scale({ bounds, isLog }, from, to) {
  const [into, back] = isLog ? [Math.log10, (value) => 10 ** value] : [Number, Number];
  const [low, high] = bounds.map(into);
  const each = (to - from) / (high - low || 1);
  return [(value) => from + (into(value) - low) * each, (pixel) => back(low + (pixel - from) / each)];
}

// Round numbers between two bounds, in steps of 1, 2 or 5.
function evenTicks(low, high, most) {
  const rough = (high - low || 1) / most;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((lead) => lead * size >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high * (1 + 1e-9); at += 1) {
    found.push([at * step, Number((at * step).toPrecision(6)).toLocaleString("en-US")]);
  }
  return found;
}

// Round durations for a logarithmic axis [h].
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
  return ticks.filter((_, place) => place % each === 0);
}

// --- marks

// Corners of a shape around 0: [how many, the angle of the first, radii in turn].
const CORNERS = { square: [4, Math.PI / 4, [1.25]], diamond: [4, 0, [1.25]], hexagon: [6, 0, [1.1]], pentagon: [5, -Math.PI / 2, [1.15]],
                  triangle: [3, -Math.PI / 2, [1.25]], star: [10, -Math.PI / 2, [1.4, 0.6]] };

function shape(name, x, y, radius, attributes) {
  if (!CORNERS[name]) return svg("circle", { cx: x, cy: y, r: radius, ...attributes });
  const [count, first, radii] = CORNERS[name];
  const points = Array.from({ length: count }, (_, k) => {
    const [angle, reach] = [first + (2 * Math.PI * k) / count, radius * radii[k % radii.length]];
    return `${(x + reach * Math.cos(angle)).toFixed(1)},${(y + reach * Math.sin(angle)).toFixed(1)}`;
  });
  return svg("polygon", { points: points.join(" "), ...attributes });
}

// entries: [[name, an SVG mark of 14 by 14]]
function legend(entries) {
  if (entries.length < 2) return null;
  return element("ul", { class: "legend" }, entries.map(([name, mark]) => element("li", {},
    svg("svg", { viewBox: "0 0 14 14", width: 14, height: 14, "aria-hidden": "true" }, mark), name)));
}

// Series over a common axis. series: [{name, x, y, colour, dash}], null where nothing was read.
const BANDS = 100; // columns with a title of their own, which say what was read there

function lines(label, xAxis, yAxis, series) {
  return (width) => {
    const height = 212;
    const drawn = plane(width, height, xAxis, yAxis);
    const strokes = series.map((one) => {
      let pen = "M";
      const path = one.x.map((x, place) => {
        if (one.y[place] === null) { pen = "M"; return ""; }
        const said = `${pen}${drawn.x(x).toFixed(1)} ${drawn.y(one.y[place]).toFixed(1)}`;
        pen = "L";
        return said;
      });
      return svg("path", { class: "line", d: path.join(""), stroke: one.colour, "stroke-dasharray": one.dash });
    });
    return [legend(series.map((one) => [one.name, svg("path", { class: "line", d: "M0 7H14", stroke: one.colour, "stroke-dasharray": one.dash })])),
            picture(width, height, label, drawn.axes, svg("g", { class: "marks" }, strokes), bands(drawn, series, xAxis, yAxis))]
      .filter(Boolean);
  };
}

function bands({ box, x }, series, xAxis, yAxis) {
  const places = series[0].x;
  const each = Math.max(Math.ceil(places.length / BANDS), 1);
  const size = (box.right - box.left) / Math.max(Math.ceil(places.length / each), 1);
  return places.filter((_, place) => place % each === 0).map((at, turn) => svg("rect", {
    class: "band", x: x(at) - size / 2, y: box.top, width: size, height: box.bottom - box.top,
  }, svg("title", {}, [`${xAxis.title} ${shortNumber(at)}`, ...series.map((one) => {
    const read = one.y[Math.min(turn * each, one.y.length - 1)];
    return read === null ? "" : `${one.name}: ${shortNumber(read)} ${yAxis.title}`;
  })].filter(Boolean).join("\n"))));
}

function shortNumber(value) {
  return Number(value.toPrecision(3)).toLocaleString("en-US", { maximumSignificantDigits: 3 });
}
