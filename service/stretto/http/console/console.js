// The console: reads the form, has the requests sent, and tells what came of them.

import { Groups, counted, create, element, fetched } from "./answers.js";
import { Session } from "./events.js";
import { canForetell, claimsOf, freshKey, groupId } from "./identity.js";
import { Plots } from "./plots.js";

const MANY = 50;
const EVENTS_MAX = 50;
const NAME_CHARACTERS_MAX = 64;
const TYPED_MILLISECONDS = 400;
const STRAYED = {
  reclaimed: "taken over after its lease",
  healed: "settled, because its group exists",
  failed: "settled as failed",
  claimed_again: "claimed again, because nothing was left of it",
  unknown: "the outcome of a write was unknown",
  other_body: "its key came with another body",
};

const at = (id) => document.getElementById(id);
const groups = new Groups(at("groups"));
let claims;
// By the group's id: when the first request for it was sent.
const firstSent = new Map();
let isBusy = false;
let isCut = false;
let typed = 0;
let longestLag = null;

const session = new Session(showEvent, showState);
new Plots(at("plots"), at("plots-problem"), () => {
  const lag = longestLag;
  longestLag = null;
  return lag;
});

// The token

at("token").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(useToken, TYPED_MILLISECONDS);
});

at("offer").addEventListener("click", async () => {
  const { document: given, problem } = await fetched("console/token", { method: "POST" });
  if (problem) {
    at("token-note").textContent = problem;
    return;
  }
  at("token").value = given.token;
  useToken();
});

function useToken() {
  const token = at("token").value.trim();
  claims = claimsOf(token);
  const end = claims?.exp ? `, until ${new Date(claims.exp * 1000).toLocaleTimeString()}` : "";
  at("token-note").textContent = claims
    ? `You are ${claims.sub}${end}. The token is in this page's memory only.`
    : "This is no token (a JWT with a subject).";
  at("cut").disabled = !claims;
  foretell();
  if (claims) session.begin(token);
  else session.stop();
}

// The key, and the id that follows from it

async function foretell() {
  const [key, owner] = [at("key").value, claims?.sub];
  const shown = at("foretold");
  if (!owner || !key) shown.value = "needs a token and a key";
  else if (!canForetell) shown.value = "computed over https or on the service's own machine only";
  else {
    const id = await groupId(owner, key);
    // Another key may have been typed meanwhile.
    if (key === at("key").value && owner === claims?.sub) shown.value = id;
  }
}

function renew() {
  at("key").value = freshKey();
  foretell();
}

at("renew").addEventListener("click", renew);
at("key").addEventListener("input", foretell);
renew();

// Creations

const ACTIONS = {
  create: (request) => [send(request)],
  many: (request) => Array.from({ length: MANY }, () => send(request)),
  async lose(request) {
    const lost = await send(request, { losesAnswer: true });
    return [lost, send(request)];
  },
  async reuse(request) {
    // The key belongs to the first body that was sent with it.
    const first = await send(request);
    const name = `${request.body.name} (changed)`.slice(-NAME_CHARACTERS_MAX);
    return [first, send({ ...request, body: { ...request.body, name } })];
  },
};

at("creation").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (isBusy) return;
  isBusy = true;
  try {
    const request = await asked();
    at("verdict").textContent = "Sent.";
    const answers = await Promise.all(await ACTIONS[event.submitter.value](request));
    at("verdict").textContent = verdict(request.key, answers);
    if (at("lookup-key").value !== request.key) forgetFound();
    at("lookup-key").value = request.key;
  } finally {
    isBusy = false;
  }
});

async function asked() {
  const [token, key, name] = ["token", "key", "name"].map((id) => at(id).value.trim());
  const members = at("members").value.split(",").map((each) => each.trim()).filter(Boolean);
  const owner = claimsOf(token)?.sub;
  const foretold = owner && canForetell ? await groupId(owner, key) : undefined;
  return { token, key, foretold, body: { name, members } };
}

async function send(request, how) {
  if (!firstSent.has(request.foretold)) firstSent.set(request.foretold, performance.now());
  const answer = await create(request, how);
  groups.add(request, answer);
  return answer;
}

function verdict(key, answers) {
  const named = new Set(groups.answersTo(key).map((each) => each.groupId).filter(Boolean));
  const words = ["No group yet.", "One group."][named.size] ?? "MORE THAN ONE GROUP: report this.";
  const requests = answers.length === 1 ? "1 request" : `${answers.length} requests`;
  return `${requests}: ${counted(answers)}. ${words}`;
}

// Live events

at("cut").addEventListener("click", () => {
  if (isCut) session.resume();
  else session.cut();
});

function showState(state, sentence, position) {
  isCut = state === "cut";
  at("cut").textContent = isCut ? "Resume" : "Cut the connection";
  at("position").textContent = position ? `position ${position}` : "";
  const shown = at("live-state");
  shown.className = state;
  // What is set again would be read out again.
  if (shown.textContent !== sentence) shown.textContent = sentence;
}

function showEvent(event, isMissed) {
  const { group_id: id, name, owner_id: owner, members_count: members } = event.data;
  const item = element("li");
  const head = element("p");
  const time = element("time", "", new Date(event.time).toLocaleTimeString());
  time.dateTime = event.time;
  const what = ` of ${owner}, ${members} ${members === 1 ? "member" : "members"}`;
  head.append(time, " ", element("code", "", event.type), " ", element("b", "", name), what);
  const sentAt = event.type === "group.created" ? firstSent.get(id) : undefined;
  if (isMissed) head.append(" ", element("span", "chip lost", "missed, caught up"));
  else if (sentAt !== undefined) {
    const seconds = (performance.now() - sentAt) / 1000;
    longestLag = Math.max(longestLag ?? 0, seconds);
    head.append(" ", element("span", "note", `${Math.round(seconds * 1000)} ms after its request`));
  }
  item.append(head, element("p", "id", id));
  at("events").prepend(item);
  if (at("events").children.length > EVENTS_MAX) at("events").lastElementChild.remove();
}

// An attempt by its key

const NOTHING_FOUND = at("found").textContent;

// What was found belongs to the key that was looked up.
function forgetFound() {
  at("found").replaceChildren(NOTHING_FOUND);
}

at("lookup-key").addEventListener("input", forgetFound);

at("lookup").addEventListener("submit", async (event) => {
  event.preventDefault();
  const key = at("lookup-key").value;
  const headers = { Authorization: `Bearer ${at("token").value.trim()}` };
  const path = `v1/attempts/${encodeURIComponent(key)}`;
  const [{ document: found, problem }, { document: trail, problem: gap }] = await Promise.all(
    [path, `${path}/history`].map((each) => fetched(each, { headers })),
  );
  if (key !== at("lookup-key").value) return;
  const shown = [found ? stateOf(found) : element("p", "problem", problem)];
  // Entries may be all that is left of an attempt.
  if (found || trail) shown.push(...historyOf(key, found, trail?.history ?? []));
  if (found && gap) shown.push(element("p", "problem", `Its trail: ${gap}`));
  at("found").replaceChildren(...shown);
});

function stateOf(found) {
  const facts = element("dl");
  const fact = (name, value, kind = "") =>
    facts.append(element("dt", "", name), element("dd", kind, value));
  fact("Status", found.status, `status ${found.status}`);
  fact("Group", found.group_id, "id");
  fact("Conversation", found.conversation_id ?? "none", "id");
  if (found.failure) fact("Failure", `${found.failure.code}: ${found.failure.detail}`);
  return facts;
}

function historyOf(key, found, trail) {
  const steps = trail.map(({ happened_at: time, what, code, trace_id: trace }) => {
    const more = [code, trace && `trace ${trace}`].filter(Boolean).join(", ");
    return { time, text: (STRAYED[what] ?? what) + (more && ` (${more})`) };
  });
  if (found) steps.unshift({ time: found.claimed_at, text: "claimed" });
  if (found?.settled_at) steps.push({ time: found.settled_at, text: "settled" });
  steps.sort((one, other) => new Date(one.time) - new Date(other.time));
  const list = element("ol", "history");
  const add = (text) => list.append(element("li", "", text));
  for (const { time, text } of steps) add(`${moment(time)} ${text}`);
  const answers = groups.answersTo(key);
  if (answers.length) add(`This page got: ${counted(answers)}`);
  const command = element("p", "note", "Instances and claims are shown to an operator: ");
  command.append(element("code", "", `stretto attempt --history ${claims?.sub} ${key}`));
  return [element("h3", "", "History"), list, command];
}

function moment(text) {
  const two = "2-digit";
  const parts = { hour: two, minute: two, second: two, fractionalSecondDigits: 3 };
  const time = new Date(text);
  const isToday = time.toDateString() === new Date().toDateString();
  return `${isToday ? "" : `${time.toLocaleDateString()} `}${time.toLocaleTimeString([], parts)}`;
}
