// Ids, as docs/ARCHITECTURE.md defines them: they follow from owner and key, so that a client knows
// its group's id before it sends anything.

const NAMESPACE_URL = "6ba7b811-9dad-11d1-80b4-00c04fd430c8"; // RFC 9562, 6.6

// Browsers hash for pages over https and of the user's own machine only.
export const canForetell = globalThis.crypto?.subtle !== undefined;

export async function groupId(owner, key) {
  const namespace = await uuid5(NAMESPACE_URL, "urn:stretto:create_group");
  return uuid5(await uuid5(namespace, owner), key);
}

export function freshKey() {
  return written(crypto.getRandomValues(new Uint8Array(16)), 4);
}

// The claims of a token, which is not verified here; undefined for what is no token.
export function claimsOf(token) {
  if (!/^[\w-]+\.[\w-]+\.[\w-]+$/.test(token)) return undefined;
  try {
    const claims = JSON.parse(atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/")));
    return typeof claims.sub === "string" ? claims : undefined;
  } catch {
    return undefined;
  }
}

async function uuid5(namespace, name) {
  const space = namespace.replaceAll("-", "").match(/../g).map((pair) => parseInt(pair, 16));
  const bytes = Uint8Array.from([...space, ...new TextEncoder().encode(name)]);
  return written(new Uint8Array(await crypto.subtle.digest("SHA-1", bytes), 0, 16), 5);
}

function written(bytes, version) {
  bytes[6] = (bytes[6] & 0x0f) | (version << 4);
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
