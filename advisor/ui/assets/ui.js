"use strict";
/* The page as an application: what the controls say is posted, and the answer is drawn.
   An answer comes in two parts, the list first; one that a newer question has replaced is dropped.
   The state stands in the address after "#", so that a reload and a bookmark keep it. */
(function () {
  const { element, live } = window.advisorReport;
  const question = window.advisorQuestion;
  const compare = window.advisorCompare;
  const WAIT_MS = 350;
  const TAB = Math.random().toString(36).slice(2, 10);
  const $ = (id) => document.getElementById(id);
  let number = 0;
  let timer = null;
  let abort = null;
  let now = null;
  let pin = null;
  let started = "";

  // --- asking

  async function post(path, body, signal) {
    let reply;
    try {
      reply = await fetch(path, {
        method: "POST", headers: { "Content-Type": "application/json" },
        body: JSON.stringify(body), signal, credentials: "same-origin",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw Object.assign(new Error("the server does not answer"), {
        isTold: true, hint: "start advisor ui again, and open the address that it prints",
      });
    }
    const found = await reply.json();
    if (!reply.ok) throw Object.assign(new Error(found.error.what), found.error, { isTold: true });
    return found;
  }

  const answer = (slot, answers, whole, signal) =>
    post("api/answer", { slot: `${TAB} ${slot}`, question: answers, whole }, signal);

  async function ask() {
    const mine = ++number;
    const asked = question.values();
    if (abort) abort.abort();
    abort = new AbortController();
    document.documentElement.dataset.settled = "false";
    working(true);
    question.mark(null, ""); // what was wrong with the question before
    try {
      for (const whole of [false, true]) {
        const found = await answer("now", asked, whole, abort.signal);
        if (mine !== number) return;
        if (whole) complete(found);
        else show(found);
        working(false);
        if (found.is_whole) break;
      }
    } catch (error) {
      if (mine === number && error.name !== "AbortError") refuse(error);
    } finally {
      if (mine === number) settle();
    }
  }

  // Nothing more is to come until something is changed.
  function settle() {
    working(false);
    document.documentElement.dataset.settled = "true";
  }

  function later() {
    clearTimeout(timer);
    timer = setTimeout(ask, WAIT_MS);
    document.documentElement.dataset.answered = "false";
    document.documentElement.dataset.settled = "false";
  }

  // --- what is said of it

  // The answer on the page is dimmed only while another one is to take its place.
  function working(isOn) {
    $("progress").classList.toggle("idle", !isOn);
    document.documentElement.dataset.answered = String(!isOn);
    $("report").setAttribute("aria-busy", String(isOn));
    if (isOn) say("Pricing the job on every offer …");
  }

  function say(text, isWrong) {
    $("said").textContent = text;
    $("said").classList.toggle("wrong", Boolean(isWrong));
  }

  function refuse(error) {
    if (!error.isTold) {
      say("This page failed. Reload it; the question is kept in its address.", true);
      throw error;
    }
    const [name] = error.message.split(/[:\s]/);
    question.mark(name, "");
    const hint = error.hint ? `; ${error.hint}` : "";
    if (question.has(name)) question.mark(name, `${error.message}${hint}.`);
    say(`${error.message}${hint}. The answer shown is to the question before.`, true);
  }

  function show(found, isDrawn) {
    now = found;
    question.mark(null, "");
    fit(found.data.answer);
    window.advisorReport.isWaiting = !found.is_whole;
    if (!isDrawn) draw(found.data);
    else if (!found.is_whole) window.advisorReport.draw();
    compare.draw(now, pin);
    window.advisorHandOver.draw(found);
    remember();
    const count = found.data.answer.front.length;
    say(found.exit_code ? "Nothing satisfies the constraints; the nearest misses are shown."
      : `${count} ${count === 1 ? "candidate" : "candidates"}.`);
  }

  // What would change the answer is there too: the rest stays as it is read.
  function complete(found) {
    now = found;
    window.advisorReport.complete(found.data);
    compare.draw(now, pin);
  }

  // Whoever looks at a candidate goes on looking at it while it is listed.
  function draw(data) {
    const before = window.advisorReport.selected;
    const machines = (from) => JSON.stringify(from.answer.front.find(
      (row) => String(row.rank) === before)?.configuration);
    const shown = machines(window.advisorReport.data);
    window.advisorReport.draw(data);
    if (shown && shown === machines(data)) window.advisorReport.select(before);
  }

  function fit(record) {
    const rows = [...record.front, ...record.nearest];
    const span = (field) => [
      Math.min(...rows.map((one) => one[field].low)), Math.max(...rows.map((one) => one[field].high)),
    ];
    if (!rows.length) return;
    const [[cheap, dear], [fast, slow]] = [span("cost_usd"), span("training_time_h")];
    question.fit("budget", cheap / 2, dear * 4);
    question.fit("deadline", fast / 2, slow * 4);
  }

  // --- the state in the address: what differs from the command line's question

  function remember() {
    const asked = question.values();
    // A team's address holds the whole question, so that whoever it is sent to sees the same answer.
    const query = live.is_shared && now.asked.query ? `?${now.asked.query}` : "";
    const state = { ...(!live.is_shared && JSON.stringify(asked) !== started && { q: asked }),
      ...(pin && { p: pin.asked.answers }), ...(compare.chosen() && { c: compare.chosen() }) };
    const text = Object.keys(state).length ? `#${encodeURIComponent(JSON.stringify(state))}` : "";
    history.replaceState(null, "", location.pathname + query + text);
  }

  function remembered() {
    try {
      const state = JSON.parse(decodeURIComponent(location.hash.slice(1)));
      return state && typeof state === "object" && !Array.isArray(state) ? state : null;
    } catch {
      return null;
    }
  }

  async function pinAnswer(answers) {
    const button = $("pin");
    button.disabled = true;
    try {
      pin = await answer("pin", answers, true);
    } catch (error) {
      refuse(error);
    } finally {
      button.disabled = false;
      pinned();
    }
  }

  function pinned() {
    $("pin").textContent = pin ? "Remove the pin" : "Pin this answer";
    $("pin").setAttribute("aria-pressed", String(Boolean(pin)));
    compare.draw(now, pin);
    remember();
  }

  function togglePin() {
    pin = pin ? null : now;
    compare.choose(null);
    pinned();
  }

  // --- the page's own parts

  function build() {
    $("changes").before(element("section", { id: "compare", "aria-labelledby": "compare-title" }));
    question.build($("question"), live.groups, later);
    compare.onChange(remember);
    window.advisorHandOver.onExport((asked) => post("api/export",
      { slot: TAB, question: now.asked.answers, ...asked }));
    $("pin").addEventListener("click", togglePin);
    $("reset").addEventListener("click", () => { question.show(live.asked.answers); ask(); });
    $("fold").addEventListener("click", () => {
      const isOpen = $("fold").getAttribute("aria-expanded") === "true";
      $("fold").setAttribute("aria-expanded", String(!isOpen));
      $("question").hidden = isOpen;
    });
    if (matchMedia("(max-width: 60rem)").matches) $("fold").click();
  }

  function start() {
    const state = remembered() || {};
    if (!live.is_shared) history.replaceState(null, "", location.pathname + location.hash); // without the token
    document.documentElement.dataset.app = "true";
    build();
    question.show(live.asked.answers);
    started = JSON.stringify(question.values());
    if (state.q) question.show(state.q);
    if (Array.isArray(state.c)) compare.choose(state.c.map(String));
    if (state.q) ask();
    else {
      show({ ...live, data: window.advisorReport.data }, true);
      if (live.is_whole) settle();
      else ask();
    }
    if (state.p) pinAnswer(state.p);
  }

  start();
})();
