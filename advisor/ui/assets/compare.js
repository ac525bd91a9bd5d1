"use strict";
/* Candidates side by side: of the answer that is shown, and of one that was pinned before.
   `advisorCompare.draw(shown, pinned)` takes replies of the server; `.chosen()` are the columns'
   keys ("now:1", "pin:2"), `.choose(keys)` sets them. All numbers are those of the answers; what is
   worked out here is how many times the first column's time and cost another column's are. */
(function () {
  const { element, live } = window.advisorReport;
  const LABELS = new Map(live.groups.flatMap((group) => group.controls).map((one) => [one.name, one]));
  const MOST = 4;
  const NAMES = { now: "shown", pin: "pinned" };
  const ROWS = [
    ["Machines", (one) => one.words.machines],
    ["Inside", (one) => one.words.inside],
    ["Where", (one) => one.words.where],
    ["Whole job", (one) => interval(one.words.time), "time"],
    ["Cost", (one) => interval(one.words.cost), "cost"],
    ["One step", (one) => interval(one.words.step)],
    ["Throughput", (one) => one.words.throughput],
    ["Memory per device", (one) => one.words.memory],
    ["Limited by", (one) => one.words.limited_by],
    ["Layout", (one) => layout(one.record.layout)],
  ];
  let replies = {};
  let chosen = null;
  let changed = () => {};

  const interval = (pair) => (pair[1] ? `${pair[0]} (${range(pair[1])})` : pair[0]);

  function layout(one) {
    if (!one) return "";
    const degrees = ["dp", "tp", "pp", "cp", "ep"].filter((name) => one[name] > 1);
    const said = degrees.map((name) => `${name} ${one[name]}`);
    if (one.zero_stage) said.push(`ZeRO ${one.zero_stage}`);
    if (one.recompute && one.recompute !== "none") said.push(`recompute ${one.recompute}`);
    return said.join(", ") || "one device";
  }

  function candidates(side) {
    const data = replies[side] && replies[side].data;
    if (!data) return [];
    const listed = data.answer.front.length ? data.answer.front : data.answer.nearest;
    const rows = listed.map((record) => [String(record.rank), record]);
    if (data.answer.here) rows.push(["here", data.answer.here]);
    return rows.map(([key, record]) => ({
      key: `${side}:${key}`, side, record, words: data.words.candidates[key],
      name: key === "here" ? "this machine" : `#${key}`,
    }));
  }

  const all = () => [...candidates("pin"), ...candidates("now")];

  function usual() {
    const picks = (side) => {
      const data = replies[side] && replies[side].data;
      return data ? Object.values(data.answer.picks).map((key) => `${side}:${key}`) : [];
    };
    const wanted = replies.pin
      ? [...picks("pin").slice(0, 1), ...picks("now").slice(0, 1)]
      : [...new Set(picks("now"))];
    return wanted.slice(0, MOST);
  }

  function columns() {
    const rows = all();
    const found = (chosen || []).filter((key) => rows.some((one) => one.key === key));
    const keys = chosen && found.length ? found : usual();
    return keys.map((key) => rows.find((one) => one.key === key)).filter(Boolean);
  }

  function toggle(key, isOn) {
    const keys = columns().map((one) => one.key).filter((one) => one !== key);
    const wanted = new Set(isOn ? [...keys, key].slice(-MOST) : keys);
    chosen = all().map((one) => one.key).filter((one) => wanted.has(one));
    render();
    changed();
    const box = document.querySelector(`#compare input[value="${CSS.escape(key)}"]`);
    if (box) box.focus();
  }

  function choices(side, shown) {
    const rows = candidates(side);
    if (!rows.length) return null;
    return element("fieldset", { class: "choices" },
      element("legend", {}, side === "now" ? "Of the answer shown" : "Of the pinned answer"),
      ...rows.map((one) => {
        const box = element("input", { type: "checkbox", value: one.key });
        box.checked = shown.some((other) => other.key === one.key);
        box.addEventListener("change", () => toggle(one.key, box.checked));
        return element("label", { class: "name" }, box,
          `${one.record.rank ? `${one.name} ` : ""}${one.words.machines}, ${one.words.time[0]}, ${one.words.cost[0]}`);
      }));
  }

  function times(one, first, kind) {
    const field = kind === "time" ? "training_time_h" : "cost_usd";
    const [mine, base] = [one.record[field].value, first.record[field].value];
    if (one === first || !(base > 0)) return null;
    return element("span", { class: "times" }, `${(mine / base).toPrecision(3)} × the first`);
  }

  function table(shown) {
    const head = shown.map((one) => element("th", { scope: "col" },
      `${replies.pin ? `${NAMES[one.side]} ` : ""}${one.name}`,
      one.words.picked_as ? element("span", { class: "pick" }, one.words.picked_as) : ""));
    const body = ROWS.map(([title, text, kind]) => element("tr", {},
      element("th", { scope: "row" }, title),
      ...shown.map((one) => {
        const ratio = kind ? times(one, shown[0], kind) : null;
        return element("td", { "data-row": title, "data-of": one.key },
          text(one) || "", ...(ratio ? [ratio] : []));
      })));
    return element("div", { class: "scroll", tabindex: "0", role: "region",
      "aria-label": "Candidates side by side" },
    element("table", { class: "compared" },
      element("thead", {}, element("tr", {}, element("td", {}), ...head)),
      element("tbody", {}, ...body)));
  }

  function differences() {
    if (!replies.pin || !replies.now) return null;
    const [before, after] = [replies.pin.asked.answers, replies.now.asked.answers];
    const names = [...new Set([...Object.keys(before), ...Object.keys(after)])]
      .filter((name) => JSON.stringify(before[name]) !== JSON.stringify(after[name]));
    const said = (name, value) => (value === undefined ? LABELS.get(name).open
      : typeof value === "boolean" ? (value ? "yes" : "no") : String(value));
    const rows = names.map((name) => element("li", {}, element("b", {}, LABELS.get(name).label),
      `: pinned ${said(name, before[name])}, shown ${said(name, after[name])}`));
    return element("div", { class: "differences" },
      element("p", {}, rows.length ? "The two questions differ in:" : "Both questions are the same."),
      element("ul", {}, ...rows));
  }

  function render() {
    const shown = columns();
    const isOpen = Boolean(replies.pin || chosen);
    section("compare", "Side by side", isOpen, ...(all().length ? [differences(),
      choices("pin", shown), choices("now", shown), shown.length ? table(shown) : null] : []));
  }

  window.advisorCompare = {
    draw(now, pin) { replies = { now, pin }; render(); },
    chosen: () => chosen,
    choose(keys) { chosen = keys; },
    onChange(call) { changed = call; },
  };
})();
