// An application that uses clients/js: it shows each group once it is known, and keeps what it shows.

import { Stretto } from "/stretto.js";

const options = new URLSearchParams(location.search);
const owner = options.get("owner");

// A page without a store: each click is a request of its own, and nothing is sent after a reload.
const forgetful = { keep: async (record) => record, all: async () => [], drop: async () => {} };

const client = new Stretto({
  url: options.get("url"),
  owner,
  // An expired token first, now and then, until the service refuses it.
  token: async (isRefused) => options.get(isRefused || Math.random() < 0.7 ? "good" : "expired"),
  ...(options.has("forgetful") && { store: forgetful }),
});

// What was foretold and shown stays, as in an application's own store.
async function conclude(intention) {
  const { groupId } = await intention.send();
  localStorage.setItem(`shown ${intention.body.name} ${groupId}`, "");
  await intention.done();
}

// Returns once the intention is stored: before that, a user sees that nothing has happened.
window.click = async (name, key) => {
  const intention = await client.intend({ name, members: ["bob"] }, key ? { key } : {});
  localStorage.setItem(`foretold ${name} ${intention.groupId}`, "");
  conclude(intention);
};

async function resume() {
  const intentions = await client.resume();
  for (const intention of intentions) conclude(intention);
  return intentions.length;
}

window.allDone = async () => {
  while (await resume()) await new Promise((then) => setTimeout(then, 100));
};
addEventListener("pageshow", (event) => {
  if (event.persisted) localStorage.setItem("restored", "");
});
await resume();
window.isReady = true;
