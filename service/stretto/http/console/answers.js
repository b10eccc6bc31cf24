// Sends creations and shows each answer under the group that it names.

// A request has left the browser by then, so that only its answer is lost.
const LOSE_AFTER_MILLISECONDS = 50;
const ADVICE = {
  "same-key": "Wait, then send the same request with the same key.",
  "new-key": "Take a new key.",
  never: "Correct the request.",
};
// Where the request itself is not at fault.
const ADVICE_BY_CODE = { unauthenticated: "Take another token.", not_found: "" };

// Sends one creation. Where the answer is to be lost, it is dropped unread: as after a broken
// connection, the client does not know whether there is a group.
export async function create(request, { losesAnswer = false } = {}) {
  const started = performance.now();
  const abort = new AbortController();
  if (losesAnswer) setTimeout(() => abort.abort(), LOSE_AFTER_MILLISECONDS);
  try {
    const response = await fetch("v1/groups", {
      method: "POST",
      headers: {
        Authorization: `Bearer ${request.token}`,
        "Content-Type": "application/json",
        "Idempotency-Key": request.key,
      },
      body: JSON.stringify(request.body),
      signal: abort.signal,
    });
    if (losesAnswer) {
      abort.abort();
      return { kind: "lost", outcome: "lost" };
    }
    const text = await response.text();
    return read(response, text, Math.round(performance.now() - started));
  } catch (error) {
    if (abort.signal.aborted) return { kind: "lost", outcome: "lost" };
    return { kind: "failed", outcome: "no answer", problem: { detail: error.message } };
  }
}

// A field that begins with a quote is a string in quotes (RFC 8941): then the key is quoted, too.
function keyField(key) {
  return key.startsWith('"') ? `"${key.replace(/["\\]/g, "\\$&")}"` : key;
}

function read(response, text, milliseconds) {
  const { status } = response;
  if (status === 201) {
    const outcome = response.headers.get("Idempotency-Status");
    const kind = response.headers.has("Idempotent-Replayed") ? "again" : "wrote";
    return { kind, outcome, status, text, milliseconds, groupId: JSON.parse(text).group_id };
  }
  const problem = problemOf(text);
  const kind = problem.retry === "same-key" ? "failed" : "refused";
  return { kind, outcome: problem.code, status, problem, milliseconds };
}

// Returns the document of an answer, or in words why there is none.
export async function fetched(path, options) {
  try {
    const response = await fetch(path, options);
    const text = await response.text();
    if (response.ok) return { document: JSON.parse(text) };
    return { problem: `${response.status}: ${inWords(problemOf(text))}` };
  } catch (error) {
    return { problem: `There is no answer: ${error.message}` };
  }
}

// The problem document of an answer; a proxy's own error page is none.
function problemOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return { code: "no problem document", detail: text.slice(0, 200) };
  }
}

function inWords(problem) {
  const advice = ADVICE_BY_CODE[problem.code] ?? ADVICE[problem.retry];
  return [problem.detail, advice].filter(Boolean).join(" ");
}

// How many there are of each outcome: "1 created, 49 replayed".
export function counted(answers) {
  const counts = new Map();
  for (const { outcome } of answers) counts.set(outcome, (counts.get(outcome) ?? 0) + 1);
  return [...counts].map(([outcome, count]) => `${count} ${outcome}`).join(", ");
}

const GROUPS_MAX = 6;

// The cards of the last groups, the newest first.
export class Groups {
  #place;
  #cards = new Map();

  constructor(place) {
    this.#place = place;
  }

  // An answer that names no group belongs to the one that its key would create.
  add(request, answer) {
    const id = answer.groupId ?? request.foretold ?? `key ${request.key}`;
    if (!this.#cards.has(id)) this.#cards.set(id, new Card(this.#place, id, request.body.name));
    this.#cards.get(id).add(request, answer);
    if (this.#cards.size > GROUPS_MAX) {
      this.#cards.delete(this.#cards.keys().next().value);
      this.#place.lastElementChild.remove();
    }
  }

  answersTo(key) {
    return [...this.#cards.values()].flatMap((card) => card.answers.filter((a) => a.key === key));
  }
}

class Card {
  answers = [];
  #chips = element("ul", "chips");
  #tally = element("p", "tally");
  #problem = element("p", "problem");
  #documents = new Set();

  constructor(place, id, name) {
    const article = element("article", "group");
    const title = element("h3", "", name);
    this.#problem.hidden = true;
    this.#chips.setAttribute("aria-label", "Answers");
    article.append(title, element("p", "id", id), this.#tally, this.#chips, this.#problem);
    place.prepend(article);
  }

  add(request, answer) {
    this.answers.push({ ...answer, key: request.key });
    const shown = answer.status ?? answer.outcome;
    const text = answer.kind === "wrote" ? `${shown} ${answer.outcome}` : shown;
    const chip = element("li", `chip ${answer.kind}`, text);
    chip.title = [answer.outcome, answer.milliseconds && `${answer.milliseconds} ms`]
      .filter(Boolean)
      .join(", ");
    this.#chips.append(chip);
    if (answer.text) this.#documents.add(answer.text);
    const successes = this.answers.filter((each) => each.status === 201).length;
    const same = this.#documents.size === 1 ? "the same bytes" : "DIFFERENT BYTES";
    const bytes = successes > 1 ? `. All ${successes} successes have ${same}.` : ".";
    this.#tally.textContent = counted(this.answers) + bytes;
    if (answer.problem) {
      const head = element("b", "", [answer.status, answer.outcome].filter(Boolean).join(" "));
      this.#problem.replaceChildren(head, ` ${inWords(answer.problem)}`);
      this.#problem.hidden = false;
    }
  }
}

export function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}
