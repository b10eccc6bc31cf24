/** What to do after a refusal: send the same again, take a new key, or mend the request. */
export type Retry = "same-key" | "new-key" | "never";

/** A group to create; `POST /v1/groups` in the service's OpenAPI document has the rules. */
export interface NewGroup {
  name: string;
  description?: string | null;
  members?: (string | { user_id: string; role?: "admin" | "member" })[];
  kind?: string | null;
  metadata?: Record<string, unknown> | null;
}

/** The group of an intention, as it exists now. */
export interface CreatedGroup {
  groupId: string;
  conversationId: string;
  /** Whether an earlier request of this key had created it. */
  isReplay: boolean;
}

/** A refusal by the service, or by this client. */
export class StrettoError extends Error {
  constructor(
    code: string,
    detail: string,
    retry: Retry,
    status?: number,
    problem?: Record<string, unknown>,
  );
  /**
   * The service's, such as `attempt_failed` or `unauthenticated`; `http_404` for an answer that is
   * not the service's, which settles nothing; of this client: `key_reused`, `other_owner`, `history_lost`.
   */
  readonly code: string;
  readonly detail: string;
  readonly retry: Retry;
  /** 0 where no answer was involved. */
  readonly status: number;
  /** The problem document (RFC 9457), with `errors` or `failure` where it has them. */
  readonly problem: Record<string, unknown>;
}

/** What is stored of an intention. */
export interface StoredIntention {
  readonly groupId: string;
  readonly owner: string;
  readonly key: string;
  /** The request's body, byte for byte. */
  readonly body: string;
  /** When it was stored, in milliseconds: `Idempotency-First-Sent`. */
  readonly at: number;
}

/** Where intentions are kept; by default in IndexedDB. */
export interface Store {
  /**
   * Stores a record and returns it, unless one with its `groupId` or one that `isSame` is there:
   * then returns that one. Both in one step, whichever tab is first.
   */
  keep(
    record: StoredIntention,
    isSame: (other: StoredIntention) => boolean,
  ): Promise<StoredIntention>;
  all(): Promise<StoredIntention[]>;
  /**
   * Forgets the record with this `groupId` if it has this `body`: else another tab has stored another
   * one under its key since. Both in one step.
   */
  drop(groupId: string, body: string): Promise<unknown>;
}

/** What the user wants created, under one key until it is done. */
export interface Intention {
  readonly key: string;
  /** The id that the group has, or will have: known before anything is sent. */
  readonly groupId: string;
  readonly body: NewGroup;
  /**
   * Sends until the outcome is known, and returns the same promise to all that ask. Rejects with a
   * `StrettoError` whose `retry` says what to do, or with what the token function throws: then the
   * intention stays, and `send` or `resume` goes on with it. Rejects with an `AbortError` once it was
   * forgotten.
   */
  send(): Promise<CreatedGroup>;
  /**
   * Forgets the intention once the page has used its outcome. Changes nothing and returns false
   * while there is none, as after a network failure, a proxy's page or a refused token.
   */
  done(): Promise<boolean>;
  /**
   * Gives up, whatever has become of it: this page sends nothing more. There may be a group all the same.
   */
  forget(): Promise<unknown>;
}

/** A live session; each iteration reconnects and resumes by itself. */
export interface Events extends AsyncIterable<StrettoEvent> {
  /** The position behind what was received: keep it, and resume from it. */
  readonly lastEventId: string | undefined;
  /** Fulfilled when the session has begun: groups that are read after that miss no event. */
  readonly ready: Promise<void>;
}

/** A CloudEvent, such as `group.created`. */
export interface StrettoEvent {
  readonly id: string;
  readonly type: string;
  /** The group's id. */
  readonly subject: string;
  readonly data: Record<string, unknown>;
  readonly [attribute: string]: unknown;
}

export interface StrettoOptions {
  /** Where the service is, with its prefix if it has one; by default the page's own origin. */
  url?: string;
  /**
   * Returns a token; `isRefused` says that the last one was refused: return another. What it throws ends
   * the iteration of `events`, and the sending of an intention, and is the page's to handle: catch a
   * network failure in it and try again, if they are to go on.
   */
  token(isRefused: boolean): string | Promise<string>;
  /** The token's `sub`. Without it the token function is asked, also offline. */
  owner?: string;
  store?: Store;
}

export class Stretto {
  constructor(options: StrettoOptions);
  /**
   * Stores what is to be created, before anything is sent. An equal `key` (1 to 255 characters of
   * ! to ~, the first no quote) is the same intention for ever. Without a key, an equal body is the
   * same intention until that is done. Rejects with `key_reused` for a key that has another body, and
   * with a `TypeError` for another key or what JSON leaves out: then nothing is stored.
   */
  intend(group: NewGroup, options?: { key?: string }): Promise<Intention>;
  /** Sends what is not done, of this page and of earlier ones; `send` has each one's outcome. */
  resume(): Promise<Intention[]>;
  /**
   * The user's events from a position on, or from now on, each once. Ends with the signal; throws
   * `history_lost` if nothing can be resumed there, a refusal that no retry changes, and what the token
   * function throws. `silence`: milliseconds without a sign of life after which it connects again; above
   * two heartbeats.
   */
  events(options?: { lastEventId?: string; signal?: AbortSignal; silence?: number }): Events;
}

/** The id that the group of this owner and key has, or will have. */
export function groupId(owner: string, key: string): Promise<string>;
