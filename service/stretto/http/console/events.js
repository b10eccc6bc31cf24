// A live session: a WebSocket that resumes at its last position, so that a cut loses no event.

const RECONNECT_MILLISECONDS = [500, 5000];
const CLOSE_TOKEN_ENDED = 4401;
const CLOSE_POSITION_LOST = 4410;

export class Session {
  #socket = null;
  #position = null;
  #timer = 0;
  #token = "";
  #onEvent;
  #onState;

  // `onEvent` gets an event and whether it was missed; `onState` a state, a sentence, the position.
  constructor(onEvent, onState) {
    this.#onEvent = onEvent;
    this.#onState = onState;
  }

  // Another token may be another user's: its session begins afresh.
  begin(token) {
    this.#end();
    this.#token = token;
    this.#position = null;
    this.resume();
  }

  resume() {
    const url = new URL("v1/events", document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    if (this.#position) url.searchParams.set("since", this.#position);
    // A browser can send a token with a WebSocket only as a subprotocol.
    const socket = new WebSocket(url, ["stretto.v1", `stretto.token.${this.#token}`]);
    // A session that resumes is sent what it has missed between two positions without an event.
    let isCatchingUp = this.#position !== null;
    let positions = 0;
    this.#socket = socket;
    this.#tell("opening", "Connecting.");
    socket.onmessage = (message) => {
      // What still comes of a session that was cut comes again when it resumes.
      if (socket !== this.#socket) return;
      const { position, event } = JSON.parse(message.data);
      this.#position = position;
      if (event) this.#onEvent(event, isCatchingUp);
      else positions += 1;
      isCatchingUp = isCatchingUp && positions < 2;
      if (!isCatchingUp) this.#tell("live", "Live.");
    };
    socket.onclose = ({ code, reason }) => {
      if (socket === this.#socket) this.#closed(code, reason);
    };
  }

  cut() {
    this.#end();
    this.#tell("cut", "Cut: events wait in the log.");
  }

  // Without a token there is nothing to resume.
  stop() {
    this.#end();
    this.#tell("ended", "A session needs a token.");
  }

  #tell(state, sentence) {
    this.#onState(state, sentence, this.#position);
  }

  #end() {
    clearTimeout(this.#timer);
    const socket = this.#socket;
    // Its close is not reported any more.
    this.#socket = null;
    socket?.close();
  }

  #closed(code, reason) {
    this.#socket = null;
    if (code === CLOSE_TOKEN_ENDED) {
      this.#tell("ended", `${code}: ${reason}`);
      return;
    }
    if (code === CLOSE_POSITION_LOST) this.#position = null;
    const [least, most] = RECONNECT_MILLISECONDS;
    this.#timer = setTimeout(() => this.resume(), least + Math.random() * (most - least));
    // A browser hides from its pages why a handshake was refused.
    const cause = reason || "The service does not answer, or refuses the token.";
    this.#tell("opening", `${code}: ${cause} Connecting again.`);
  }
}
