/** The events of a response, until its end. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: {")) yield JSON.parse(part.slice(6));
  }
}

/** A request that the server refused, in its own words. */
class RefusedError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Speaks with the server. The key is kept in memory only. */
class Server {
  constructor() {
    this.key = "";
  }

  async ask(path, { body, accept = "application/json", signal } = {}) {
    const headers = { Accept: accept };
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    if (body) headers["Content-Type"] = "application/json";
    const response = await fetch(path, { method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body), cache: "no-store" });
    if (response.ok) return response;
    const found = await response.json().catch(() => null);
    throw new RefusedError(response.status, found?.error?.message ?? `the server answered with status ${response.status}`);
  }

  async json(path, options) {
    return (await this.ask(path, options)).json();
  }
}

/** One text that the server writes, with its rounds as they come; with an id, one that is there already. */
class Run {
  constructor(server, path, body, id = null) {
    Object.assign(this, { server, path, body, id, rounds: [], facts: null, stopped: false });
    Object.assign(this, { text: "", reasoning: "", calls: [], reason: null, tokens: 0, began: 0, seconds: 0 });
    this.control = new AbortController();
  }

  /** Ends the text: its connection closes, and the server frees its row. */
  stop() {
    this.stopped = true;
    this.control.abort();
  }

  /** Reads the text to its end; calls the listener when there is more to show. */
  async read(listener) {
    if (this.id) return this.follow(listener);
    const body = { ...this.body, stream: true, stream_options: { include_usage: true }, trace: true };
    try {
      const chunks = events(await this.server.ask(this.path, { body, signal: this.control.signal }));
      const first = (await chunks.next()).value;
      this.take(first);
      this.id = first.id;
      const rest = this.drain(chunks, listener).catch((error) => { if (!this.stopped) throw error; });
      await Promise.all([rest, this.follow(listener)]);
    } catch (error) {
      if (!this.stopped) throw error;
    }
  }

  /** A chunk: a part of the answer, its end, or its usage. */
  take(chunk) {
    if (!chunk || chunk.error) throw new RefusedError(500, chunk?.error.message ?? "the server wrote nothing");
    this.began ||= performance.now();
    this.seconds = (performance.now() - this.began) / 1000;
    this.tokens = chunk.usage?.completion_tokens ?? this.tokens;
    const [choice] = chunk.choices;
    if (!choice) return;
    const { content, reasoning_content, tool_calls } = choice.delta ?? { content: choice.text };
    this.text += content ?? "";
    this.reasoning += reasoning_content ?? "";
    for (const { index, id, function: made } of tool_calls ?? []) {
      this.calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } };
      this.calls[index].function.name += made?.name ?? "";
      this.calls[index].function.arguments += made?.arguments ?? "";
    }
    this.reason = choice.finish_reason ?? this.reason;
  }

  async drain(chunks, listener) {
    for await (const chunk of chunks) {
      this.take(chunk);
      listener();
    }
  }

  /** The trace tells how the text ended, also after a stop. A chat's prompt is its bubbles, not the template's text. */
  async follow(listener) {
    for await (const { text, round, end } of events(await this.server.ask(`v1/traces/${this.id}`, { accept: "text/event-stream" }))) {
      if (text) this.facts = { ...text, text: "", first: null, ...(this.body.messages && { prompt: "" }) };
      if (round) this.rounds.push(round);
      if (end) Object.assign(this.facts, { first: end.first, end, text: this.rounds.flatMap((made) => made.pieces.map((piece) => piece[0])).join("") });
      listener();
    }
  }

  /** How the text ended, and what it took. */
  summary() {
    const passes = this.rounds.length + (this.facts?.end?.dropped ?? 0);
    const ending = this.stopped ? "stopped by you"
      : { stop: "ended by the model", length: "cut at the most tokens", tool_calls: "ended with a call" }[this.reason] ?? this.reason;
    if (!this.tokens || !passes) return ending ?? "";
    const rates = [`${this.tokens} tokens`, `${(this.tokens / passes).toFixed(2)} per pass`];
    if (this.seconds > 0.05) rates.push(`${(this.tokens / this.seconds).toFixed(0)} tokens/s`);
    return [ending, ...rates].join(" · ");
  }
}

/** Runs of one prompt as the source of a page: the first one drafts, a second one is plain. */
class LiveSource {
  constructor(server, runs) {
    Object.assign(this, { server, runs, listeners: new Set() });
  }

  async open() {}

  texts() {
    return this.runs.map((run) => run.facts);
  }

  rounds(text) {
    return this.runs[text].rounds;
  }

  figure(text, round, width) {
    return this.server.json(`v1/traces/${this.runs[text].id}/rounds/${round}?width=${Math.round(width)}`);
  }

  async race(width) {
    if (this.runs.length < 2) return null;
    const [fast, plain] = this.runs;
    return this.server.json(`v1/traces/${fast.id}/race?plain=${plain.id}&width=${Math.round(width)}`);
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  grown(run) {
    for (const listener of this.listeners) listener(this.runs.indexOf(run));
  }
}
