"use strict";
/* What is taken along: the question as a command line and as advisor.toml, and a candidate as the
   files of a tool that runs it. `advisorHandOver.draw(reply)`; `.onExport(call)`: `call` posts
   what is asked and promises the files. */
(function () {
  const { element, live } = window.advisorReport;
  let ask = null;
  let target = live.targets.length ? live.targets[0].name : "";
  let isChosen = false; // by hand: it stays, whatever is looked at
  const given = {};

  function copyButton(label, title, text, id) {
    const button = element("button", { type: "button", "data-copy": id, "aria-label": `Copy: ${title}` }, label);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text());
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not copied: select the text";
      }
    });
    return button;
  }

  function shownText(title, text, id) {
    return element("pre", { tabindex: "0", role: "region", "aria-label": title },
      element("code", { id }, text));
  }

  function copied(title, text, id) {
    return element("div", { class: "taken" },
      element("h3", {}, title, copyButton("Copy", title, () => text, id)), shownText(title, text, id));
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

  // The tool that rents what is looked at, unless somebody chose another.
  function follow() {
    const report = window.advisorReport;
    const words = report.data.words.candidates[report.selected];
    if (!isChosen && words && words.target) target = words.target;
  }

  function exporter() {
    if (!live.targets.length) return [null, null];
    follow();
    const place = element("div", { id: "exported", "aria-live": "polite" });
    const fields = element("div", { class: "blanks" });
    const fit = () => {
      fields.replaceChildren(...blanks());
      place.replaceChildren();
    };
    const choice = element("select", { id: "target", "aria-label": "Tool to export to" },
      ...live.targets.map((one) => element("option", { value: one.name, selected: one.name === target },
        one.name)));
    document.addEventListener("advisor:selected", () => {
      if (!choice.isConnected) return;
      follow();
      choice.value = target;
      fit();
    });
    choice.addEventListener("change", () => {
      target = choice.value;
      isChosen = true;
      fit();
    });
    const button = element("button", { type: "button", id: "export", class: "main" }, named());
    button.addEventListener("click", () => run(button, place));
    fit();
    return [element("span", { class: "export" }, button, " for ", choice), [fields, place]];
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
      const { command, toml } = found.asked;
      const [tools, result] = exporter();
      const texts = [["Copy the command", "The question as a command", command, "command"],
                     ["Copy advisor.toml", "The question as a project file, advisor.toml", toml, "toml"]];
      const copies = [...texts.map(([label, title, text, id]) => copyButton(label, title, () => text, id)),
        copyButton("Copy the link", "A link to this question", () => location.href, "link")];
      document.getElementById("handover").replaceChildren(
        element("div", { class: "panel-tools" }, tools, isNarrow() ? null : copies),
        ...(result ? result.flat() : []),
        fold("question", "The question as a command and as a file", false,
          isNarrow() ? element("div", { class: "panel-tools" }, copies) : null,
          texts.map(([, title, text, id]) => [element("h3", {}, title), shownText(title, text, id)])));
    },
    onExport(call) { ask = call; },
  };
})();
