"use strict";
/* What is taken along: the question as a command line and as advisor.toml, and a candidate as the
   files of a tool that runs it. `advisorHandOver.draw(reply)`; `.onExport(call)`: `call` posts
   what is asked and promises the files. */
(function () {
  const { element, live } = window.advisorReport;
  let ask = null;
  let target = live.targets.length ? live.targets[0].name : "";
  const given = {};

  function copied(title, text, id) {
    const button = element("button", { type: "button", "data-copy": id,
      "aria-label": `Copy: ${title}` }, "Copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not copied: select the text";
      }
    });
    return element("div", { class: "taken" },
      element("h3", {}, title, button),
      element("pre", { tabindex: "0", role: "region", "aria-label": title },
        element("code", { id }, text)));
  }

  function download(name, text) {
    const link = element("a", { download: name.split("/").pop(), class: "download" }, `Download ${name}`);
    link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
    return link;
  }

  // --- a candidate as files

  function rank() {
    const key = window.advisorReport.selected;
    return /^[0-9]+$/.test(key || "") ? Number(key) : null;
  }

  function blanks() {
    const one = live.targets.find((other) => other.name === target);
    return Object.entries(one ? one.blanks : {}).map(([name, blank]) => {
      const field = element("input", { type: "text", "data-blank": name, placeholder: blank.example,
        value: given[name] || "" });
      field.addEventListener("input", () => { given[name] = field.value.trim(); });
      return element("label", { class: "control" },
        element("span", { class: "label" }, `${name}: ${blank.help}`), field);
    });
  }

  function made(found) {
    return [
      ...Object.entries(found.files).map(([name, text], i) => [
        element("div", { class: "links" }, download(name, text)),
        copied(name, text, `file-${i}`),
      ]),
      copied("Run it with", found.run, "run-it"),
      copied("The same on the command line", found.command, "export-command"),
      ...(found.notes.length ? [element("ul", { class: "plain" },
        ...found.notes.map((note) => element("li", {}, note)))] : []),
    ].flat();
  }

  async function run(button, place) {
    const names = new Set(blanks().map((one) => one.querySelector("input").dataset.blank));
    const values = Object.fromEntries(Object.entries(given).filter(([name]) => names.has(name)));
    button.disabled = true;
    try {
      place.replaceChildren(...made(await ask({ to: target, rank: rank(), values })));
    } catch (error) {
      place.replaceChildren(element("p", { class: "wrong", role: "alert" },
        `${error.message}${error.hint ? `; ${error.hint}` : ""}.`));
    } finally {
      button.disabled = false;
    }
  }

  function exporter() {
    if (!live.targets.length) return [];
    const place = element("div", { id: "exported", "aria-live": "polite" });
    const fields = element("div", { class: "blanks" }, ...blanks());
    const choice = element("select", { id: "target", "aria-label": "Tool to export to" },
      ...live.targets.map((one) => element("option", { value: one.name, selected: one.name === target },
        one.name)));
    choice.addEventListener("change", () => {
      target = choice.value;
      fields.replaceChildren(...blanks());
      place.replaceChildren();
    });
    const button = element("button", { type: "button", id: "export" }, named());
    button.addEventListener("click", () => run(button, place));
    return [
      element("h3", {}, "As the files of a tool that runs it"),
      element("div", { class: "panel-tools" }, choice, button), fields, place,
    ];
  }

  const named = () => `Export ${rank() === null ? "the best value" : `#${rank()}`}`;

  document.addEventListener("advisor:selected", () => {
    const button = document.getElementById("export");
    if (!button) return;
    button.textContent = named();
    document.getElementById("exported").replaceChildren();
  });

  window.advisorHandOver = {
    draw(found) {
      document.getElementById("handover").replaceChildren(
        element("h2", { id: "handover-title" }, "Take it along"),
        copied("The same question on the command line", found.asked.command, "command"),
        copied("As a project file, advisor.toml", found.asked.toml, "toml"),
        ...exporter(),
      );
    },
    onExport(call) { ask = call; },
  };
})();
