// The page: a conversation, its controls, and the measurements beside it.

import { get, stream } from "./api.js";
import { Answer } from "./answer.js";
import { Chart, drawAcceptance, drawCalls, drawSpeed } from "./charts.js";
import { element } from "./dom.js";
import { Race } from "./race.js";
import { ServerPanel } from "./server.js";
import { Settings } from "./settings.js";
import { Inspector } from "./tokens.js";

const $ = (id) => document.getElementById(id);
const settings = new Settings($("controls"));
const charts = {
  calls: new Chart($("calls"), drawCalls),
  acceptance: new Chart($("acceptance"), drawAcceptance),
  speed: new Chart($("speed"), drawSpeed),
};
const inspector = new Inspector($("turns"), $("inspector"));
const last = { with: null, without: null }; // the last run of each
let turns = []; // the conversation as messages
let stopping = null; // AbortController of what is being written
let stats = null;
let lastTop = 0;
let atEnd = true; // the reader has not scrolled away from the end of the text

// Measurements

function draw() {
  charts.calls.show(last.with ?? last.without);
  charts.speed.show(last);
  const mine = last.with?.acceptance ?? [];
  const all = stats?.positions ?? [];
  charts.acceptance.show(mine.length ? mine : all);
  $("acceptance-of").textContent = mine.length || !all.length ? "" : "(all requests of this server)";
}

// Writing

async function write(answer) {
  answer.begin();
  const reading = { key: settings.key, signal: stopping.signal };
  try {
    for await (const chunk of stream(settings.body(turns, answer.speculates), reading)) {
      answer.add(chunk);
      if (answer.run.tokens) last[answer.speculates ? "with" : "without"] = answer.run;
      draw();
      follow();
    }
    answer.end();
  } catch (error) {
    answer.end(error.name === "AbortError" ? "stopped" : "failed");
    throw error;
  } finally {
    draw();
    follow();
  }
}

/** Write what `made` has to write, with the buttons and clocks that go with it. */
async function busy(made, work) {
  stopping = new AbortController();
  say("");
  setBusy(true);
  const clock = setInterval(() => made.tick(), 100);
  try {
    await work();
    $("status").textContent = `Answer finished: ${made.answer?.clock.textContent ?? made.clock.textContent}`;
  } catch (error) {
    if (error.name === "AbortError") $("status").textContent = "Stopped.";
    else say(error.message, error.status);
  } finally {
    clearInterval(clock);
    stopping = null;
    setBusy(false);
    follow();
  }
}

function ask(made, work) {
  const text = $("prompt").value.trim() || (made instanceof Race ? repeated() : "");
  const problem = settings.problem || (text ? "" : "Write a message first.");
  if (problem) return say(problem);
  $("prompt").value = "";
  grow();
  $("welcome").hidden = true;
  turns.push({ role: "user", content: text });
  const talk = turns; // a new chat may begin before this answer has ended
  const turn = element("article", { class: "turn" }, [element("p", { class: "said" }, text), made.element]);
  $("turns").append(turn);
  follow(true);
  return busy(made, work).then(() => {
    const { tokens, run } = made.answer ?? made;
    if (tokens.text || run?.finish) return talk.push({ role: "assistant", content: tokens.text }); // it may be empty
    talk.pop(); // a question without an answer goes back into the box
    turn.remove();
    $("prompt").value ||= text;
    grow();
    $("welcome").hidden = $("turns").querySelector(".turn") !== null;
  });
}

/** The last question again, if the box is empty: the race then replaces its answer. */
function repeated() {
  const place = turns.findLastIndex((turn) => turn.role === "user");
  if (place < 0) return "";
  const text = turns[place].content;
  turns = turns.slice(0, place);
  return text;
}

function send() {
  const answer = new Answer("Answer: the arrow keys move from token to token", settings.get("speculate"));
  return ask(answer, () => write(answer));
}

function race() {
  const made = new Race();
  return ask(made, () => made.go(write));
}

function clear() {
  stopping?.abort();
  turns = [];
  $("turns").replaceChildren($("welcome"));
  $("welcome").hidden = false;
  say("");
  $("prompt").focus();
}

// The page around it

function say(message, status) {
  const needsKey = status === 401 && !settings.key;
  $("error").textContent = needsKey ? "This server needs an API key: give it in the settings." : message;
  $("error").hidden = !message;
  if (status === 401 || status === 403) {
    $("settings").open = true;
    $("controls").elements.key.focus();
  }
}

/** A button that can no longer be pressed hands its focus on. */
function setBusy(is) {
  const focused = document.activeElement;
  for (const id of ["send", "race"]) $(id).disabled = is;
  $("stop").disabled = !is;
  if (focused.disabled) $(is ? "stop" : "prompt").focus();
}

/** Keep the end of the text in sight, unless the reader has scrolled away from it or looks at a token. */
function follow(always = false) {
  atEnd ||= always;
  if (!atEnd || inspector.token) return;
  if (hasOwnScroll()) $("turns").scrollTop = $("turns").scrollHeight;
  else $("composer").scrollIntoView({ block: "end" });
}

/** On a narrow screen the whole page scrolls. */
const hasOwnScroll = () => getComputedStyle($("turns")).overflowY !== "visible";

/** Text that grows leaves the end behind without the reader's doing, so only a scroll away from it counts. */
function noteScroll() {
  const own = hasOwnScroll();
  const top = own ? $("turns").scrollTop : scrollY;
  const left = own
    ? $("turns").scrollHeight - top - $("turns").clientHeight
    : $("composer").getBoundingClientRect().bottom - innerHeight;
  if (Math.abs(left) < 40) atEnd = true;
  else if (top < lastTop || left < 0) atEnd = false;
  lastTop = top;
}

/** The box is as high as what is written in it, up to a limit that the style sets. */
function grow() {
  const box = $("prompt");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

const THEMES = ["system", "light", "dark"];

function setTheme(name) {
  if (name === "system") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("theme");
  } else {
    document.documentElement.dataset.theme = name;
    localStorage.setItem("theme", name);
  }
  $("theme").textContent = `Theme: ${name}`;
}

function start() {
  const theme = () => document.documentElement.dataset.theme ?? "system";
  setTheme(theme());
  $("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]));
  $("settings").open = matchMedia("(min-width: 75rem)").matches;
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!stopping) send();
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!stopping) send();
    }
  });
  $("prompt").addEventListener("input", grow);
  $("race").addEventListener("click", race);
  $("stop").addEventListener("click", () => stopping?.abort());
  $("clear").addEventListener("click", clear);
  for (const example of document.querySelectorAll(".example")) {
    example.addEventListener("click", () => {
      $("prompt").value = example.textContent;
      if (!stopping) send();
    });
  }
  document.addEventListener("scroll", noteScroll, { capture: true, passive: true });
  new ServerPanel({
    rows: $("rows"), load: $("load"), engine: $("engine"), key: () => settings.key,
    onStats: (news) => {
      if (stats?.status === "loading" && news.status === "ready") loadModels();
      stats = news;
      if (!stopping) draw();
      for (const [name, value] of [["draft", news.drafter], ["verify", news.verifier]]) {
        if (value) $("controls").elements[name].placeholder = value;
      }
    },
  });
  draw();
  loadModels();
}

async function loadModels() {
  try {
    const answer = await get("v1/models", settings.key);
    settings.offer((answer.data ?? []).map((model) => model.id));
    say("");
  } catch (error) {
    say(error.message, error.status);
  }
}

$("controls").elements.key.addEventListener("change", loadModels);
start();
