// The page of a run's record: reads the public API and shows what it says, nothing of its own.
"use strict";

(function () {
  const root = document.getElementById("record");
  const api = root.dataset.api;
  const at = (id) => document.getElementById(id);

  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  // Whose it is has to be said where the operator requires it.
  function address(path) {
    const mark = path.includes("?") ? "&" : "?";
    return `${api}${path}${mark}ownerUserId=${encodeURIComponent(root.dataset.owner)}`;
  }

  async function read(path, accept) {
    const answer = await fetch(address(path), { headers: { accept: accept || "application/json" } });
    if (!answer.ok) {
      const problem = await answer.json().catch(() => ({}));
      throw new Error(problem.detail || `The API answered ${answer.status}.`);
    }
    return answer;
  }

  function tell(place, error) {
    place.replaceChildren(element("p", error.message, "errornote"));
  }

  // ------------------------------------------------------------ timeline

  let from = "1";
  const sizes = new Map();
  const lossy = new Set(["telemetryDropped", "fileWatchOverflow"]);

  let reading = Promise.resolve();

  // One page after the other, whoever asks for them.
  function timeline() {
    reading = reading.catch(() => {}).then(nextPage);
    return reading;
  }

  async function nextPage() {
    const page = await (await read(`/timeline?limit=200&fromSequence=${from}`)).json();
    const body = at("timeline").tBodies[0];
    if (page.items.length && from === "1") body.replaceChildren();
    for (const item of page.items) {
      const row = body.insertRow();
      if (item.kind === "terminalResized" && item.ref) {
        sizes.set(item.processId, { cols: item.ref.columns, rows: item.ref.rows });
      }
      row.className = lossy.has(item.kind) ? "lossy" : "";
      row.insertCell().textContent = item.sequence;
      row.insertCell().textContent = item.observedAt.slice(11, 23);
      row.insertCell().textContent = item.kind;
      row.insertCell().textContent = item.processId || "";
      const what = row.insertCell();
      what.className = "what";
      what.textContent = item.summary;
    }
    at("more").hidden = !page.nextFromSequence;
    const last = page.items.at(-1);
    from = page.nextFromSequence || (last ? String(BigInt(last.sequence) + 1n) : from);
    if (!body.rows.length) body.insertRow().insertCell().textContent = "Nothing is recorded yet.";
  }

  // ------------------------------------------------------------ loss and coverage

  async function loss() {
    const answer = await (await read("/loss")).json();
    at("complete").textContent = answer.complete ? "yes" : "no";
    const place = at("loss");
    place.replaceChildren();
    if (answer.spans.length) {
      const list = place.appendChild(element("ul"));
      for (const span of answer.spans) {
        const range = span.fromSequence ? ` ${span.fromSequence}–${span.toSequence || "?"}` : "";
        const count = span.droppedCount ? `, ${span.droppedCount} lost` : "";
        list.appendChild(element("li", `${span.kind}${range}${count}: ${span.reason || "no reason given"}`));
      }
    } else {
      place.appendChild(element("p", "No event and no byte is missing."));
    }
    const covered = Object.entries(answer.coverage || {});
    if (covered.length) {
      const text = covered
        .map(([source, c]) => `${source}: ${c.state || c}${c.reason ? ` (${c.reason})` : ""}`)
        .join(" · ");
      place.appendChild(element("p", `Watched — ${text}`, "quiet"));
    }
  }

  // ------------------------------------------------------------ changes

  async function changes() {
    const answer = await (await read("/changes")).json();
    const place = at("changes");
    place.replaceChildren();
    if (!answer.files.length) {
      place.appendChild(element("p", "No file is different."));
      return;
    }
    if (answer.exclusive === false) {
      const others = (answer.overlappingRunIds || []).join(", ");
      place.appendChild(element("p", `Other runs were open at the same time: ${others}`, "quiet"));
    }
    const list = place.appendChild(element("ul"));
    for (const file of answer.files) {
      const was = file.oldPath ? ` (was ${file.oldPath})` : "";
      const counted = file.addedLines !== undefined;
      const lines = file.binary ? ", binary" : counted ? ` +${file.addedLines} −${file.removedLines}` : "";
      list.appendChild(element("li", `${file.change} ${file.path}${was}${lines}`));
    }
    if (answer.diff) {
      const pre = place.appendChild(element("pre"));
      for (const line of answer.diff.split("\n")) {
        const kind = line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "";
        pre.appendChild(element("span", line + "\n", kind));
      }
    }
  }

  // ------------------------------------------------------------ bytes of a stream

  const PIECE = 256 * 1024;

  // Reads a stream of a process from its beginning, piece by piece, each when it is asked for.
  class StreamReader {
    constructor(process, stream) {
      this.place = `processId=${process}&stream=${stream}`;
      this.next = "0";
      this.missing = 0;
      this.more = true;
      this.decoder = new TextDecoder();
    }

    async piece() {
      const from = `fromOffset=${this.next}&limitBytes=${PIECE}`;
      const answer = await (await read(`/scrollback?${this.place}&${from}`)).json();
      const missing = answer.missing.reduce((sum, each) => sum + Number(each.toOffset) - Number(each.fromOffset), 0);
      this.missing += missing;
      this.next = answer.nextOffset || String(Number(answer.fromOffset) + answer.byteCount + missing);
      this.more = Boolean(answer.nextOffset);
      const bytes = Uint8Array.from(atob(answer.contentBase64), (each) => each.charCodeAt(0));
      return this.decoder.decode(bytes, { stream: true });
    }
  }

  // ------------------------------------------------------------ output

  const streams = [...root.querySelectorAll("button.stream")];
  // Colours and the like: a page shows text.
  const CONTROLS = /\u001b(\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(\u0007|\u001b\\)|[@-Z\\-_])|\r(?=\n)/g;
  // One that the next piece goes on with.
  const BEGUN = /(\u001b(\[[0-?]*[ -/]*|\][^\u0007\u001b]{0,200}\u001b?)?|\r)$/;
  let shown = null;

  async function moreOutput() {
    const now = shown;
    if (now.reading) return;
    now.reading = true;
    try {
      const whole = now.begun + (await now.reader.piece());
      if (shown !== now) return;
      const cut = whole.search(BEGUN);
      now.begun = cut < 0 ? "" : whole.slice(cut);
      at("output-text").append((cut < 0 ? whole : whole.slice(0, cut)).replace(CONTROLS, ""));
      at("more-output").hidden = !now.reader.more;
      const lost = now.reader.missing ? `, ${now.reader.missing} bytes are missing` : "";
      at("output-note").textContent = `process ${now.process}, ${now.reader.next} bytes${lost}`;
      root.dataset.output = `${now.process} ${now.stream}`;
    } catch (error) {
      if (shown === now) tell(at("output-note"), error);
    } finally {
      now.reading = false;
    }
  }

  function showOutput(process, stream) {
    shown = { process, stream, reader: new StreamReader(process, stream), begun: "", reading: false };
    at("output").hidden = false;
    at("output-text").replaceChildren();
    press();
    return moreOutput();
  }

  // ------------------------------------------------------------ replay

  const OPTIONS = { idleTimeLimit: 2, fit: "width", preload: true, terminalFontSize: "14px" };
  let player = null;
  let wanted = null;
  let live = null;

  // One terminal at a time: what several showed cannot be shown on one.
  async function replay(terminal) {
    const path = "/export?format=asciicast" + (terminal ? `&processId=${terminal}` : "");
    const mine = (wanted = { terminal });
    live = null;
    delete root.dataset.replay;
    at("asciicast").href = address(path);
    press();
    if (terminal && root.dataset.open === "yes") return watch(terminal, mine);
    const cast = await (await read(path, "*/*")).text();
    if (wanted !== mine) return;
    const empty = cast.trim().indexOf("\n") < 0;
    at("replay-note").textContent = empty ? "There is no output to replay." : "";
    show(empty ? null : { data: cast }, { ...OPTIONS, poster: "npt:1e9" });
    root.dataset.replay = terminal ? `ready ${terminal}` : "ready";
  }

  function show(source, options) {
    if (player) player.dispose();
    at("replay").replaceChildren();
    player = source && AsciinemaPlayer.create(source, at("replay"), options);
  }

  // A terminal of a run that goes on is shown as it is now, and follows.
  async function watch(terminal, mine) {
    const reader = new StreamReader(terminal, "pty");
    const feeding = { reader, reading: false, feed: null };
    const driver = ({ dispatch }) => ({
      play() {
        dispatch("play");
        dispatch("reset", { size: sizes.get(terminal) || { cols: 80, rows: 24 } });
        dispatch("playing");
        feeding.feed = (text) => dispatch("output", text);
        feed(feeding, mine);
        return true;
      },
      stop() {
        feeding.feed = null;
      },
      getCurrentTime() {},
    });
    at("replay-note").textContent = "Live.";
    show(driver, { ...OPTIONS, autoPlay: true });
    live = { terminal, feeding, mine };
  }

  async function feed(feeding, mine) {
    if (feeding.reading || !feeding.feed) return;
    feeding.reading = true;
    try {
      do {
        const text = await feeding.reader.piece();
        if (wanted !== mine || !feeding.feed) return;
        feeding.feed(text);
      } while (feeding.reader.more);
      root.dataset.replay = `live ${mine.terminal}`;
    } finally {
      feeding.reading = false;
    }
  }

  function play(terminal) {
    at("replay").parentElement.hidden = false;
    return replay(terminal).catch((error) => tell(at("replay"), error));
  }

  // ------------------------------------------------------------ what is chosen

  function press() {
    const chosen = (button) =>
      button.className === "terminal"
        ? wanted !== null && wanted.terminal === button.dataset.process
        : shown !== null && shown.process === button.dataset.process;
    root
      .querySelectorAll("button.terminal, button.output")
      .forEach((each) => each.setAttribute("aria-pressed", String(chosen(each))));
    streams.forEach((each) => each.setAttribute("aria-pressed", String(each.dataset.stream === shown?.stream)));
  }

  root.addEventListener("click", (event) => {
    const { className, dataset } = event.target;
    if (className === "terminal") play(dataset.process);
    else if (className === "output") showOutput(dataset.process, "stdout").then(() => at("output").scrollIntoView());
    else if (className === "stream") showOutput(shown.process, dataset.stream);
    else if (event.target === at("more-output")) moreOutput();
    else if (event.target === at("more")) timeline().catch((error) => tell(at("more").parentNode, error));
  });

  function first(name) {
    return root.querySelector(`button.${name}`)?.dataset.process;
  }

  // Begins with what can be shown; a run that goes on may have it later.
  function begin() {
    if (shown === null && first("output")) showOutput(first("output"), "stdout");
    if (wanted === null && (first("terminal") || (!first("output") && root.dataset.open === "no"))) play(first("terminal"));
  }

  // ------------------------------------------------------------ a run that goes on

  const TOGETHER_MS = 300;
  let due = null;
  let behind = false;

  // What happened within a moment is read at once.
  function refreshSoon() {
    if (due !== null) return;
    due = setTimeout(async () => {
      try {
        await refresh();
      } catch (error) {
        console.warn(error.message);
      }
      due = null;
      if (behind) {
        behind = false;
        refreshSoon();
      }
    }, TOGETHER_MS);
  }

  async function refresh() {
    const fresh = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
    for (const id of ["facts", "processes-part"]) at(id).replaceChildren(...fresh.getElementById(id).childNodes);
    if (at("more").hidden) await timeline();
    await loss();
    if (shown !== null && at("more-output").hidden) await moreOutput();
    if (live !== null) await feed(live.feeding, live.mine);
    begin();
    press();
  }

  function follow() {
    const events = new EventSource(address("/stream?after=latest"));
    const happened = () => {
      if (due === null) refreshSoon();
      else behind = true;
    };
    // What happened before the stream began is read as well.
    events.addEventListener("open", happened);
    events.addEventListener("event", happened);
    events.addEventListener("output", happened);
    events.addEventListener("end", async () => {
      events.close();
      root.dataset.open = "no";
      await refresh();
      await changes();
      if (wanted !== null) await play(wanted.terminal);
      root.dataset.followed = "ended";
    });
    root.dataset.followed = "yes";
  }

  loss().catch((error) => tell(at("loss"), error));
  changes().catch((error) => tell(at("changes"), error));
  timeline()
    .catch((error) => tell(at("timeline").parentNode, error))
    .then(() => {
      begin();
      if (root.dataset.open === "yes") follow();
    });
})();
