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
  const lossy = new Set(["telemetryDropped", "fileWatchOverflow"]);

  async function timeline() {
    const page = await (await read(`/timeline?limit=200&fromSequence=${from}`)).json();
    const body = at("timeline").tBodies[0];
    for (const item of page.items) {
      const row = body.insertRow();
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
    from = page.nextFromSequence || from;
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

  // ------------------------------------------------------------ output

  const outputs = [...root.querySelectorAll("button.output")];
  const streams = [...root.querySelectorAll("button.stream")];
  const PIECE = 256 * 1024;
  // Colours and the like: a page shows text.
  const CONTROLS = /\u001b(\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(\u0007|\u001b\\)|[@-Z\\-_])|\r(?=\n)/g;
  // One that the next piece goes on with.
  const BEGUN = /(\u001b(\[[0-?]*[ -/]*|\][^\u0007\u001b]{0,200}\u001b?)?|\r)$/;
  let shown = null;

  async function output(shownStream) {
    const { process, stream } = shownStream;
    const place = `processId=${process}&stream=${stream}&fromOffset=${shownStream.next}&limitBytes=${PIECE}`;
    const piece = await (await read(`/scrollback?${place}`)).json();
    if (shown !== shownStream) return;
    const bytes = Uint8Array.from(atob(piece.contentBase64), (each) => each.charCodeAt(0));
    const text = shownStream.decoder.decode(bytes, { stream: true });
    const whole = shownStream.begun + text;
    const cut = whole.search(BEGUN);
    shownStream.begun = cut < 0 ? "" : whole.slice(cut);
    at("output-text").append((cut < 0 ? whole : whole.slice(0, cut)).replace(CONTROLS, ""));
    const missing = piece.missing.reduce((sum, each) => sum + Number(each.toOffset) - Number(each.fromOffset), 0);
    shownStream.missing += missing;
    shownStream.next = piece.nextOffset || String(Number(piece.fromOffset) + piece.byteCount + missing);
    at("more-output").hidden = !piece.nextOffset;
    const lost = shownStream.missing ? `, ${shownStream.missing} bytes are missing` : "";
    at("output-note").textContent = `process ${process}, ${shownStream.next} bytes${lost}`;
    root.dataset.output = `${process} ${stream}`;
  }

  function showOutput(process, stream) {
    shown = { process, stream, next: "0", missing: 0, begun: "", decoder: new TextDecoder() };
    at("output-text").replaceChildren();
    outputs.forEach((each) => each.setAttribute("aria-pressed", String(each.dataset.process === process)));
    streams.forEach((each) => each.setAttribute("aria-pressed", String(each.dataset.stream === stream)));
    moreOutput();
  }

  function moreOutput() {
    output(shown).catch((error) => tell(at("output-note"), error));
  }

  outputs.forEach((each) =>
    each.addEventListener("click", () => {
      showOutput(each.dataset.process, "stdout");
      at("output").scrollIntoView();
    }),
  );
  streams.forEach((each) => each.addEventListener("click", () => showOutput(shown.process, each.dataset.stream)));
  at("more-output").addEventListener("click", moreOutput);
  if (outputs.length) showOutput(outputs[0].dataset.process, "stdout");

  // ------------------------------------------------------------ replay

  const terminals = [...root.querySelectorAll("button.terminal")];
  let player = null;
  let wanted = null;

  // One terminal at a time: what several showed cannot be shown on one.
  async function replay(terminal) {
    const path = "/export?format=asciicast" + (terminal ? `&processId=${terminal.dataset.process}` : "");
    wanted = path;
    delete root.dataset.replay;
    at("asciicast").href = address(path);
    terminals.forEach((each) => each.setAttribute("aria-pressed", String(each === terminal)));
    const cast = await (await read(path, "*/*")).text();
    if (wanted !== path) return;
    if (player) player.dispose();
    player = null;
    at("replay").replaceChildren();
    const empty = cast.trim().indexOf("\n") < 0;
    at("replay-note").textContent = empty ? "There is no output to replay." : "";
    if (!empty) {
      player = AsciinemaPlayer.create({ data: cast }, at("replay"), {
        idleTimeLimit: 2, fit: "width", poster: "npt:1e9", preload: true, terminalFontSize: "14px",
      });
    }
    root.dataset.replay = terminal ? `ready ${terminal.dataset.process}` : "ready";
  }

  function play(terminal) {
    replay(terminal).catch((error) => tell(at("replay"), error));
  }

  terminals.forEach((each) => each.addEventListener("click", () => play(each)));
  at("more").addEventListener("click", () => timeline().catch((e) => tell(at("more").parentNode, e)));
  timeline().catch((error) => tell(at("timeline").parentNode, error));
  loss().catch((error) => tell(at("loss"), error));
  changes().catch((error) => tell(at("changes"), error));
  if (terminals.length || !outputs.length) play(terminals[0]);
})();
