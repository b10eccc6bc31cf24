// The browser's client: README.md says how to use it, stretto.d.ts what it does; here is why.

const NAMESPACE_URL = "6ba7b811-9dad-11d1-80b4-00c04fd430c8"; // RFC 9562, 6.6
const ADVICE = ["same-key", "new-key", "never"];
// "Later", also from a proxy.
const PASSING = [408, 409, 425, 429];
// The service answers in 10 s; a large body may arrive at 64 kbit/s.
const TRY_MS = 15_000;
const CHARACTERS_PER_MS = 8;
const BACKOFF_MS = [500, 30_000];
const RETRY_AFTER_SECONDS_MAX = 3600;
// A clock that is wrong by less is no reason.
const SKEW_MS_MIN = 60_000;
// Two heartbeats of the service, and some.
const SILENCE_MS = 60_000;
const EVENTS_KNOWN_MAX = 1024;
const TOKEN_ENDED = 4401;
const HISTORY_LOST = 4410;

export class StrettoError extends Error {
  constructor(code, detail, retry, status = 0, problem = {}) {
    super(`${code}: ${detail}`);
    Object.assign(this, { name: "StrettoError", code, detail, retry, status, problem });
  }
}

export async function groupId(owner, key) {
  const namespace = await uuid5(NAMESPACE_URL, "urn:stretto:create_group");
  return uuid5(await uuid5(namespace, owner), key);
}

export class Stretto {
  #url;
  #token;
  #owner;
  #store;
  #intentions = new Map();

  constructor({ url = "/", token, owner, store }) {
    if (!globalThis.crypto?.subtle) throw new Error("stretto-client needs https or localhost");
    this.#url = new URL(url, globalThis.location?.href).href.replace(/\/?$/, "/v1/");
    this.#token = token;
    this.#owner = owner;
    this.#store = store ?? indexedStore(`stretto ${this.#url}`);
  }

  /** Stores what is to be created, before anything is sent. */
  async intend(group, { key } = {}) {
    const own = key ?? crypto.randomUUID();
    const body = JSON.stringify(group);
    if (!body) throw new TypeError("give a group");
    if (!/^[#-~!][!-~]{0,254}$/.test(own)) throw new TypeError("a key has 1 to 255 of ! to ~");
    const owner = await this.#whose();
    const record = await this.#store.keep(
      { groupId: await groupId(owner, own), owner, key: own, body, at: Date.now() },
      (other) => key === undefined && other.owner === owner && other.body === body,
    );
    if (record.body !== body) {
      throw new StrettoError("key_reused", "The key stands for another body.", "new-key");
    }
    return this.#intention(record);
  }

  /** Sends what is not done, of this page and of earlier ones. */
  async resume() {
    const owner = await this.#whose();
    const records = (await this.#store.all()).filter((record) => record.owner === owner);
    const intentions = records.map((record) => this.#intention(record));
    for (const intention of intentions) intention.send().catch(() => {});
    return intentions;
  }

  /** The user's events from a position on, or from now on. */
  events(options = {}) {
    return new Events(options, (...request) => this.#request("events", ...request));
  }

  async #whose() {
    const owner = this.#owner ?? subjectOf(await this.#token(false));
    if (!owner) throw new TypeError("give `owner`: the token has none");
    return owner;
  }

  // One object of a page sends for all that ask; another body is another intention.
  #intention(record) {
    const { groupId, body } = record;
    const id = groupId + body;
    if (!this.#intentions.has(id)) {
      const request = (...options) => this.#request("groups", ...options);
      // Until then resume() may know it.
      const drop = () =>
        this.#store.drop(groupId, body).finally(() => this.#intentions.delete(id));
      this.#intentions.set(id, new Intention(record, request, drop));
    }
    return this.#intentions.get(id);
  }

  async #request(path, options, isRefused, owner) {
    const token = await this.#token(isRefused);
    // Another user's token would make another group.
    if (owner && owner !== (subjectOf(token) ?? owner)) {
      throw new StrettoError("other_owner", "The token is of another user.", "same-key");
    }
    const headers = { ...options.headers, Authorization: `Bearer ${token}` };
    // Throws what can never be sent: later errors are of the network.
    return new Request(this.#url + path, { redirect: "error", ...options, headers });
  }
}

class Intention {
  #record;
  #request;
  #drop;
  #sending;
  #isSettled = false;
  #end = new AbortController();

  constructor(record, request, drop) {
    this.#record = record;
    this.#request = request;
    this.#drop = drop;
    this.key = record.key;
    this.groupId = record.groupId;
    this.body = JSON.parse(record.body);
  }

  /** Sends until the outcome is known. */
  send() {
    const { signal } = this.#end;
    this.#sending ??= new Promise((resolve, reject) => {
      signal.onabort = () => reject(signal.reason);
      this.#outcome(signal).then(resolve, reject);
    }).catch((error) => {
      this.#sending = undefined;
      throw error;
    });
    return this.#sending;
  }

  /** Forgets an outcome that the page has used; false while there is none. */
  async done() {
    if (this.#isSettled) await this.#drop();
    return this.#isSettled;
  }

  /** Gives up. There may be a group all the same. */
  forget() {
    this.#end.abort();
    return this.#drop();
  }

  async #outcome(signal) {
    const { at, body, owner, key } = this.#record;
    let isRefused = false;
    let skew = 0;
    for (let failures = 0; ; ) {
      signal.throwIfAborted();
      const headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": key,
        "Idempotency-First-Sent": `@${Math.floor((Math.min(at, Date.now()) + skew) / 1000)}`,
      };
      const request = await this.#request({ method: "POST", headers, body }, isRefused, owner);
      // Tabs take turns, until one stands still; the service needs no lock. The page may forget it.
      const { response, document } = await locked(`stretto ${this.groupId}`, () => {
        signal.throwIfAborted();
        return answerTo(request, TRY_MS + Math.ceil(body.length / CHARACTERS_PER_MS));
      });
      if (response?.status === 201 && document.group_id) {
        this.#isSettled = true;
        const isReplay = response.headers.has("Idempotent-Replayed");
        return { groupId: document.group_id, conversationId: document.conversation_id, isReplay };
      }
      const error = errorOf(response, document);
      const wasRefused = isRefused;
      isRefused = error.status === 401;
      if (isRefused && !wasRefused) continue;
      const told = skew;
      if (error.code === "first_sent_out_of_range") {
        skew = Date.parse(response.headers.get("Date")) - Date.now();
      }
      if (isEnd(error) && !(Math.abs(skew - told) > SKEW_MS_MIN)) {
        // Another token may be allowed it.
        const isOpen = isRefused || error.code === "insufficient_scope";
        this.#isSettled = !isOpen && error.retry !== "same-key";
        throw error;
      }
      await pause(response, failures++, 0, signal);
    }
  }
}

class Events {
  #request;
  #signal;
  #silence;
  #begin;

  constructor({ lastEventId, signal, silence = SILENCE_MS }, request) {
    this.lastEventId = lastEventId;
    this.ready = new Promise((resolve) => (this.#begin = resolve));
    this.#request = request;
    this.#signal = signal;
    this.#silence = silence;
  }

  async *[Symbol.asyncIterator]() {
    const known = new Set();
    const signal = this.#signal;
    let isRefused = false;
    let least = 0;
    for (let failures = 0; !signal?.aborted; ) {
      const headers = { Accept: "text/event-stream" };
      if (this.lastEventId) headers["Last-Event-ID"] = this.lastEventId;
      const wasRefused = isRefused;
      isRefused = false;
      const request = await this.#request({ headers, cache: "no-store" }, wasRefused);
      const cut = new AbortController();
      const end = () => cut.abort();
      let timer;
      const beat = () => {
        clearTimeout(timer);
        timer = setTimeout(end, this.#silence);
      };
      if (signal?.aborted) return;
      signal?.addEventListener("abort", end);
      let response;
      try {
        beat();
        response = await fetch(request, { signal: cut.signal });
        isRefused = response.status === 401;
        // Not a page.
        if (!/event/.test(response.headers.get("Content-Type"))) {
          const error = errorOf(response, parsed(await response.text()));
          if (response.ok || (isEnd(error) && (wasRefused || !isRefused))) throw error;
        } else {
          for await (const { id, event, data, retry } of blocksOf(response.body, beat)) {
            if (signal?.aborted) break;
            if (retry) least = Number(retry);
            if (id !== undefined) this.lastEventId = id;
            if (id) {
              failures = 0;
              this.#begin();
            }
            if (!data) continue;
            const document = JSON.parse(data);
            if (event === "close") {
              const { code, reason } = document;
              if (code === HISTORY_LOST) throw new StrettoError("history_lost", reason, "never");
              isRefused = code === TOKEN_ENDED;
              break;
            }
            // What a broken connection has sent may come again.
            if (known.has(document.id)) continue;
            known.add(document.id);
            if (known.size > EVENTS_KNOWN_MAX) known.delete(known.values().next().value);
            yield document;
          }
        }
      } catch (error) {
        if (error instanceof StrettoError) throw error;
      } finally {
        clearTimeout(timer);
        end();
        signal?.removeEventListener("abort", end);
      }
      await pause(response, failures++, least, signal);
    }
  }
}

async function answerTo(request, milliseconds) {
  const signal = AbortSignal.timeout(milliseconds);
  try {
    const response = await fetch(request, { signal });
    return { response, document: parsed(await response.text()) };
  } catch {
    return { document: {} };
  }
}

// The blocks of an event stream, as their fields; our data has one line.
async function* blocksOf(stream, beat) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let block = {};
  for (let part; !(part = await reader.read()).done; ) {
    beat();
    const lines = (rest + part.value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line) {
        const [, name, value] = line.match(/^([^:]*):? ?([^]*)$/);
        block[name] = value;
      } else {
        yield block;
        block = {};
      }
    }
  }
}

function parsed(text) {
  try {
    return Object(JSON.parse(text));
  } catch {
    return {};
  }
}

function errorOf(response, problem) {
  const status = response?.status ?? 0;
  const { code = `http_${status}`, detail = "no problem document" } = problem;
  const retry = ADVICE.includes(problem.retry) ? problem.retry : "same-key";
  return new StrettoError(code, detail, retry, status, problem);
}

// A proxy's page settles nothing; its status says whether to go on.
function isEnd({ retry, status, problem }) {
  if (retry !== "same-key") return true;
  return retry !== problem.retry && status >= 400 && status < 500 && !PASSING.includes(status);
}

// As the service asks, else until the network is back.
function pause(response, failures, least, signal) {
  const [first, most] = BACKOFF_MS;
  const field = Number(response?.headers.get("Retry-After")) || 0;
  const asked = Math.min(field, RETRY_AFTER_SECONDS_MAX);
  const spread = Math.random() * (asked ? first : Math.min(most, first * 2 ** failures));
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      globalThis.removeEventListener?.("online", end);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, Math.max(asked * 1000, least) + spread);
    if (!asked) globalThis.addEventListener?.("online", end);
    signal?.addEventListener("abort", end);
    if (signal?.aborted) end();
  });
}

function locked(name, work) {
  const signal = AbortSignal.timeout(TRY_MS);
  return globalThis.navigator?.locks?.request(name, { signal }, work).catch(work) ?? work();
}

// Not verified here.
function subjectOf(token) {
  try {
    return JSON.parse(atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/"))).sub;
  } catch {}
}

async function uuid5(namespace, name) {
  const space = namespace.match(/[^-]{2}/g).map((pair) => parseInt(pair, 16));
  const text = Uint8Array.from([...space, ...new TextEncoder().encode(name)]);
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-1", text), 0, 16);
  bytes[6] = (bytes[6] & 0x0f) | 0x50;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

// Opened for each use, as it can be closed under a page. Transactions of all tabs take turns;
// "strict" is on the disk.
function indexedStore(name) {
  const use = async (mode, work) => {
    const database = await new Promise((resolve, reject) => {
      const opening = indexedDB.open(name, 1);
      opening.onupgradeneeded = () =>
        opening.result.createObjectStore("intentions", { keyPath: "groupId" });
      opening.onerror = () => reject(opening.error);
      opening.onsuccess = () => resolve(opening.result);
    });
    try {
      // Throws where the user has just deleted the database.
      const transaction = database.transaction("intentions", mode, { durability: "strict" });
      return await new Promise((resolve, reject) => {
        let result;
        transaction.oncomplete = () => resolve(result);
        transaction.onabort = () => reject(transaction.error);
        work(transaction.objectStore("intentions"), (found) => (result = found));
      });
    } finally {
      database.close();
    }
  };
  const all = (intentions, then) => {
    intentions.getAll().onsuccess = ({ target }) => then(target.result);
  };
  return {
    keep: (record, isSame) =>
      use("readwrite", (intentions, give) =>
        all(intentions, (records) => {
          const found = records.find((other) => other.groupId === record.groupId || isSame(other));
          if (!found) intentions.add(record);
          give(found ?? record);
        }),
      ),
    all: () => use("readonly", all),
    drop: (groupId, body) =>
      use("readwrite", (intentions) => {
        intentions.get(groupId).onsuccess = ({ target }) => {
          if (target.result?.body === body) intentions.delete(groupId);
        };
      }),
  };
}
