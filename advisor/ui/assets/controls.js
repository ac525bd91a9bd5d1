"use strict";
/* The question as controls: from `live.groups` to elements, and from elements to answers by name.
   `advisorQuestion.values()` reads them, `.show(answers)` sets them, `.mark(name, text)` says what
   is wrong with one, `.fit(name, least, most)` lets a slider span what answers cost and take. */
(function () {
  const { element } = window.advisorReport;
  const STEPS = 100;
  // Least and most of a slider, until an answer says what things cost and take.
  const limits = { budget: [1, 10000], deadline: [0.1, 1000], max_nodes: [1, 64] };
  const fitted = new Set();
  const UNITS = { USD: " in USD", duration: " as 90m, 6h or 2d", share: " as 90%" };
  const SUFFIX = { deadline: "h" };
  const controls = new Map();
  let changed = () => {};

  function shown(name, value) {
    if (value === undefined || value === null) return "";
    if (typeof value === "number" && SUFFIX[name]) return `${value}${SUFFIX[name]}`;
    return Array.isArray(value) ? value.join(",") : String(value);
  }

  // --- sliders: equal steps are equal factors; the last step leaves a thing without default open

  function amountAt(name, step) {
    const [least, most] = limits[name];
    const amount = least * (most / least) ** (step / (STEPS - 1));
    if (name === "max_nodes") return Math.round(amount);
    return Number(amount.toPrecision(amount < 100 ? 2 : 3));
  }

  function amountOf(name, text) {
    const number = /^\s*\$?\s*([0-9][0-9,]*\.?[0-9]*|\.[0-9]+)\s*([a-zA-Z]*)\s*$/.exec(text);
    if (!number) return null;
    const unit = { "": 1, usd: 1, h: 1, m: name === "deadline" ? 1 / 60 : 1e6, d: 24, k: 1e3 };
    const factor = unit[number[2].toLowerCase()];
    return factor === undefined ? null : Number(number[1].replaceAll(",", "")) * factor;
  }

  function stepOf(name, text) {
    const amount = amountOf(name, text);
    if (amount === null || amount <= 0) return STEPS;
    const [least, most] = limits[name];
    const step = ((STEPS - 1) * Math.log(amount / least)) / Math.log(most / least);
    return Math.max(0, Math.min(STEPS - 1, Math.round(step)));
  }

  function slider(one, field) {
    const range = element("input", {
      type: "range", min: 0, max: STEPS, value: STEPS, "aria-label": `${one.label}, slider`,
      "data-slider": one.name,
    });
    const hasDefault = one.default !== null;
    const place = () => {
      const text = field.value.trim();
      const open = hasDefault ? stepOf(one.name, String(one.default)) : STEPS;
      range.value = text ? stepOf(one.name, text) : open;
      range.setAttribute("aria-valuetext", text || one.open);
    };
    if (hasDefault) range.max = STEPS - 1;
    range.addEventListener("input", () => {
      const step = Number(range.value);
      field.value = step === STEPS ? "" : shown(one.name, amountAt(one.name, step));
      range.setAttribute("aria-valuetext", field.value || one.open);
      changed();
    });
    field.addEventListener("input", place);
    return { range, place };
  }

  // --- one control of each kind: an element, how it is read, how it is set

  function textControl(one, id) {
    const field = element("input", {
      type: "text", id, name: one.name, placeholder: one.open, spellcheck: "false",
      autocapitalize: "off",
    });
    field.addEventListener("input", () => changed());
    const parts = [field];
    let place = () => {};
    if (one.kind === "slider") {
      const made = slider(one, field);
      parts.push(made.range);
      place = made.place;
    }
    return {
      field, parts, place,
      read: () => field.value.trim() || undefined,
      write: (value) => { field.value = shown(one.name, value); place(); },
    };
  }

  function choiceControl(one, id) {
    const isSwitch = one.kind === "switch";
    const words = isSwitch ? ["yes", "no"] : one.choices;
    const field = element("select", { id, name: one.name },
      element("option", { value: "" }, one.open),
      ...words.map((word) => element("option", { value: word }, word)));
    field.addEventListener("change", () => changed());
    return {
      field, parts: [field], place: () => {},
      read: () => (field.value === "" ? undefined : isSwitch ? field.value === "yes" : field.value),
      write: (value) => {
        const isOpen = value === undefined || value === null;
        field.value = isOpen ? "" : isSwitch ? (value ? "yes" : "no") : String(value);
      },
    };
  }

  function switchControl(one, id) {
    const field = element("input", { type: "checkbox", id, name: one.name });
    field.checked = one.default;
    field.addEventListener("change", () => changed());
    return {
      field, parts: [field], place: () => {},
      read: () => (field.checked === one.default ? undefined : field.checked),
      write: (value) => {
        field.checked = value === undefined || value === null ? one.default : value;
      },
    };
  }

  function namesControl(one, id) {
    const boxes = one.choices.map((name) => element("input", {
      type: "checkbox", value: name, name: one.name,
    }));
    const field = element("div", { id, class: "boxes", role: "group", "aria-label": one.label },
      ...boxes.map((box) => element("label", { class: "name" }, box, box.value)));
    boxes.forEach((box) => box.addEventListener("change", () => changed()));
    const ticked = () => boxes.filter((box) => box.checked).map((box) => box.value);
    return {
      field, parts: [field], place: () => {},
      read: () => (ticked().length ? ticked().join(",") : undefined),
      write: (value) => {
        const names = shown(one.name, value).split(",");
        boxes.forEach((box) => { box.checked = names.includes(box.value); });
      },
    };
  }

  function make(one) {
    const id = `ask-${one.name}`;
    const isTriple = one.kind === "switch" && one.default === null;
    const control = one.kind === "names" ? namesControl(one, id)
      : one.kind === "choice" || isTriple ? choiceControl(one, id)
        : one.kind === "switch" ? switchControl(one, id) : textControl(one, id);
    const help = element("span", { class: "help", id: `${id}-help` }, one.help);
    const wrong = element("span", { class: "wrong", id: `${id}-wrong`, role: "alert" });
    control.field.setAttribute("aria-describedby", `${id}-help ${id}-wrong`);
    const unit = UNITS[one.unit] ? element("span", { class: "unit" }, UNITS[one.unit]) : null;
    const label = one.kind === "names"
      ? element("span", { class: "label" }, one.label)
      : element("label", { class: "label", for: id }, one.label, unit);
    controls.set(one.name, { ...control, wrong });
    const kind = control.field.type === "checkbox" ? "check" : one.kind;
    return element("div", { class: `control ${kind}`, "data-control": one.name },
      label, ...control.parts, help, wrong);
  }

  function group(one) {
    const inside = element("div", { class: "controls" }, ...one.controls.map(make));
    const fold = element("details", { class: "group" }, element("summary", {}, one.title), inside);
    fold.open = one.is_open;
    return fold;
  }

  window.advisorQuestion = {
    build(form, groups, onChange) {
      changed = onChange;
      form.append(...groups.map(group));
      form.addEventListener("submit", (event) => { event.preventDefault(); changed(); });
    },
    values() {
      const found = {};
      for (const [name, control] of controls) {
        const value = control.read();
        if (value !== undefined) found[name] = value;
      }
      return found;
    },
    show(answers) {
      for (const [name, control] of controls) control.write(answers[name]);
      for (const [name] of controls) {
        const fold = document.getElementById(`ask-${name}`).closest("details");
        if (answers[name] !== undefined) fold.open = true;
      }
    },
    mark(name, text) {
      for (const [other, control] of controls) {
        const isWrong = other === name;
        control.wrong.textContent = isWrong ? text : "";
        if (isWrong) control.field.setAttribute("aria-invalid", "true");
        else control.field.removeAttribute("aria-invalid");
      }
      return controls.has(name);
    },
    fit(name, least, most) {
      if (!(least > 0 && most > least)) return;
      const before = fitted.has(name) ? limits[name] : [least, most];
      limits[name] = [Math.min(before[0], least), Math.max(before[1], most)];
      fitted.add(name);
      controls.get(name).place();
    },
    has: (name) => controls.has(name),
  };
})();
