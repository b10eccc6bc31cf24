// The page of the chat: groups through stretto's browser client, messages through the chat's routes.

import { Stretto, StrettoError } from "/stretto.js";

const WAIT_SECONDS = 20;
const RETRY_MS = 1000;

const at = (id) => document.getElementById(id);
const pause = () => new Promise((resolve) => setTimeout(resolve, RETRY_MS));

// Groups by id: those of the service, and those that are being created.
const groups = new Map();
let user = sessionStorage.getItem("user");
let token = sessionStorage.getItem("token");
let opened;
let reading = new AbortController();

// The client asks for a token before each try, and says whether the last one was refused.
async function currentToken(isRefused) {
  if (isRefused || !token) {
    const response = await fetch("/login", { method: "POST", body: JSON.stringify({ user }) });
    const document = await response.json();
    if (!response.ok) throw new Error(document.detail);
    token = document.token;
    sessionStorage.setItem("user", user);
    sessionStorage.setItem("token", token);
  }
  return token;
}

const client = new Stretto({ url: "/chat", token: currentToken });

async function ask(path, options = {}) {
  for (const isRefused of [false, true]) {
    const headers = { ...options.headers, Authorization: `Bearer ${await currentToken(isRefused)}` };
    const response = await fetch(path, { ...options, headers });
    if (response.status === 401 && !isRefused) continue;
    const document = await response.json();
    if (!response.ok) throw new Error(document.detail);
    return document;
  }
}

// ---- groups

function show(group) {
  const known = groups.get(group.group_id);
  groups.set(group.group_id, { ...known, ...group });
  draw();
  const isBorn = group.conversation_id && !known?.conversation_id;
  if (group.group_id === opened && (isBorn || !known)) open(opened);
}

function draw() {
  const items = [...groups.values()].map((each) => {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.textContent = each.name;
    if (!each.conversation_id) button.className = "pending";
    if (each.group_id === opened) button.setAttribute("aria-current", "true");
    button.onclick = () => open(each.group_id);
    item.append(button);
    return item;
  });
  at("groups").replaceChildren(...items);
}

// The group is shown before it is sent: its id is known.
async function follow(intention) {
  show({ group_id: intention.groupId, name: intention.body.name });
  try {
    const { groupId, conversationId } = await intention.send();
    show({ group_id: groupId, conversation_id: conversationId });
  } catch (error) {
    if (!(error instanceof StrettoError)) throw error;
    groups.delete(intention.groupId);
    draw();
    notice(`“${intention.body.name}” was not created: ${error.detail}`);
  }
  await intention.done();
}

async function listGroups() {
  for (let cursor = ""; cursor !== null; ) {
    const query = cursor && `?cursor=${encodeURIComponent(cursor)}`;
    const page = await ask(`/chat/v1/groups${query}`);
    page.groups.forEach(show);
    cursor = page.next_cursor;
  }
}

// Resumed by the client; what cannot be resumed begins with a new list.
async function followEvents() {
  for (;;) {
    const events = client.events();
    events.ready.then(listGroups).catch((error) => notice(error.message));
    try {
      for await (const event of events) if (event.type === "group.created") show(event.data);
    } catch (error) {
      if (error.code !== "history_lost") return notice(error.message);
    }
  }
}

// ---- messages

function open(id) {
  opened = id;
  const group = groups.get(id);
  at("title").textContent = group.name;
  at("new-message").hidden = !group.conversation_id;
  at("messages").replaceChildren();
  draw();
  reading.abort();
  reading = new AbortController();
  if (group.conversation_id) read(group.conversation_id, reading.signal);
}

async function read(conversation, signal) {
  for (let next = 0; !signal.aborted; ) {
    try {
      const path = `/messages/${conversation}?from=${next}&wait=${WAIT_SECONDS}`;
      const { messages } = await ask(path, { signal });
      if (signal.aborted) return;
      for (const message of messages) {
        at("messages").append(itemOf(message));
        next = message.message_offset + 1;
      }
      at("messages").lastElementChild?.scrollIntoView();
    } catch (error) {
      if (!signal.aborted) await pause();
    }
  }
}

function itemOf({ author, body }) {
  const item = document.createElement("li");
  item.className = author === null ? "house" : author === user ? "own" : "";
  if (author !== null && author !== user) {
    const name = document.createElement("b");
    name.textContent = author;
    item.append(name);
  }
  item.append(body);
  return item;
}

// One id for all tries: a lost answer does not say a thing twice.
async function say(conversation, body) {
  const message = JSON.stringify({ id: crypto.randomUUID(), body });
  for (;;) {
    try {
      return await ask(`/messages/${conversation}`, { method: "POST", body: message });
    } catch (error) {
      if (!(error instanceof TypeError)) return notice(error.message);
      await pause();
    }
  }
}

// ---- the page

function notice(text) {
  at("notice").textContent = text;
}

async function start() {
  try {
    await currentToken(false);
  } catch (error) {
    return notice(error.message);
  }
  notice("");
  at("sign-in").hidden = true;
  at("chat").hidden = false;
  // What an earlier page has not finished.
  (await client.resume()).forEach(follow);
  followEvents();
}

at("sign-in").onsubmit = (event) => {
  event.preventDefault();
  user = at("user").value.trim();
  start();
};

at("new-group").onsubmit = async (event) => {
  event.preventDefault();
  const members = at("members").value.split(",").map((each) => each.trim()).filter(Boolean);
  const intention = await client.intend({ name: at("name").value, members });
  opened = intention.groupId;
  event.target.reset();
  await follow(intention);
};

at("new-message").onsubmit = (event) => {
  event.preventDefault();
  say(groups.get(opened).conversation_id, at("text").value);
  event.target.reset();
};

if (user) start();
