const EXAMPLES = {
  chat: ["Explain in two sentences why the sky is blue.", "Write a haiku about a river.", "Write a Python function that reverses a list."],
  completion: ["Once upon a time", "One day, a little cat", "There was a big box in the park."],
};

/** A conversation with the server's model, and the rounds of its last answer. */
class LivePage extends HTMLElement {
  async connectedCallback() {
    this.server = new Server();
    this.build();
    await this.greet();
    this.dataset.ready = "yes";
  }

  build() {
    const button = (words, act, more) => make("button", { type: "button", onclick: act, ...more }, words);
    this.key = make("input", { type: "password", autocomplete: "off" });
    this.keyForm = make("form", { className: "controls", hidden: true, onsubmit: (event) => { event.preventDefault(); this.unlock(); } },
      field("The server's API key", this.key), make("button", { type: "submit" }, "Use it"));
    this.settings = document.createElement("dw-settings");
    this.conversation = document.createElement("dw-chat");
    this.prompt = make("textarea", { rows: 2, required: true, "aria-label": "message", placeholder: "Write a message" });
    this.write = make("button", { type: "submit", className: "main", title: "Enter" }, "Send");
    this.stop = button("Stop", () => this.halt(), { disabled: true, hidden: true, title: "Esc" });
    this.fresh = button("New chat", () => this.clear());
    this.race = button("Race plain decoding", () => this.second(), { disabled: true });
    this.save = button("Save the trace", () => this.download(), { disabled: true });
    this.german = button("A German sentence", () => this.example());
    this.about = make("h2", {}, "Chat");
    this.models = make("select", { "aria-label": "model", hidden: true, onchange: () => { this.clear(); this.greet(); } });
    this.note = make("p", { className: "note", role: "status" });
    this.form = make("form", { className: "composer", onsubmit: (event) => { event.preventDefault(); this.first(); } }, this.prompt, this.write, this.stop);
    this.prompt.addEventListener("keydown", (event) => this.typed(event));
    this.addEventListener("keydown", (event) => { if (event.key === "Escape" && !this.stop.disabled) this.halt(); });
    this.rounds = make("section", { className: "rounds", "aria-label": "rounds of the answer" }, make("h2", {}, "How the answer was written"),
      make("p", { className: "quiet" }, "The tree of every round is drawn here while an answer is written: what was drafted, what the model kept, and what it wrote itself."),
      make("div", { className: "controls" }, this.race, this.save, this.german));
    this.append(make("section", { className: "talk", "aria-label": "chat" }, make("div", { className: "top" }, this.about, this.models, this.fresh),
      this.keyForm, this.settings, this.conversation, this.note, this.form), this.rounds);
  }

  /** Enter sends; with Shift it begins a line, and inside a composed character it is the input method's. */
  typed(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (this.stop.disabled) this.form.requestSubmit();
  }

  /** The chosen model, or else one that is loaded, or the first one. A model that is not loaded is loaded now. */
  async choice() {
    const found = (await this.server.json("v1/models")).data;
    const chosen = found.find((one) => one.id === this.models.value) ?? found.find((one) => one.status.value === "loaded") ?? found[0];
    this.models.replaceChildren(...found.map((one) => make("option", { value: one.id, selected: one === chosen }, one.id)));
    this.models.hidden = found.length < 2;
    if (chosen.status.value === "loaded") return chosen;
    this.say(`${chosen.id} is being loaded …`);
    await this.server.ask("api/generate", { body: { model: chosen.id, stream: false } });
    return this.server.json(`v1/models/${encodeURI(chosen.id)}`);
  }

  /** What the server has: a model, and perhaps a chat template. */
  async greet() {
    await this.attempt(async () => {
      const model = await this.choice();
      this.model = model.id;
      this.about.textContent = model.id;
      this.settings.fit(model);
      this.prompt.placeholder = model.chat_template ? "Write a message" : "Write the beginning of a text";
      const examples = EXAMPLES[model.chat_template ? "chat" : "completion"];
      this.conversation.welcome(
        make("p", {}, model.chat_template ? `Talk with ${model.id}.` : `${model.id} continues texts. It has no chat template, so every text stands alone.`),
        ...examples.map((words) => make("button", { type: "button", onclick: () => { this.prompt.value = words; this.first(); } }, words)));
      this.lock(false);
      this.say("");
      this.prompt.focus();
    });
  }

  async unlock() {
    this.server.key = this.key.value.trim();
    await this.greet();
  }

  /** Without a key nothing but the key can be given. */
  lock(locked) {
    this.keyForm.hidden = !locked;
    for (const part of [this.form, this.settings, this.conversation, this.rounds]) part.inert = locked;
  }

  /** Does something; returns whether it went well. An error becomes a note, and a missing key a question. */
  async attempt(work) {
    try {
      await work();
      return true;
    } catch (error) {
      if (error.status === 401) {
        this.lock(true);
        this.say(this.server.key ? "The server does not know this key." : "The server wants a key. It is kept in this tab only.");
        this.key.focus();
      } else this.say(error.status ? `The server says: ${error.message}.` : "The server cannot be reached.");
      return false;
    }
  }

  say(words) {
    const { following } = this.conversation;
    this.note.textContent = words;
    if (following) this.conversation.follow();
  }

  request(said) {
    const body = { model: this.model, ...this.settings.values() };
    if (!this.settings.chat.checked) return ["v1/completions", { ...body, prompt: said }];
    return ["v1/chat/completions", { ...body, messages: this.conversation.messages(this.settings.system.value.trim(), said) }];
  }

  /** Says something, and shows the answer and its rounds as they come. Where nothing was answered, the text goes back. */
  async first() {
    const said = this.prompt.value;
    if (!said.trim() || this.settings.invalid()) return;
    this.run?.stop();
    const run = new Run(this.server, ...this.request(said)), turn = this.conversation.add(said, run, this.model);
    this.source = new LiveSource(this.server, [run]);
    this.prompt.value = "";
    this.prompt.focus();
    await this.read(run, () => { if (turn === this.conversation.last) this.conversation.grow(turn); this.show(run); });
    if (turn !== this.conversation.last) return;
    if (run.text || run.calls.length || run.reason) this.conversation.end(turn, this.actions(turn));
    else this.prompt.value ||= this.conversation.undo();
    if (run === this.run && run.facts) this.race.disabled = run.facts.plain || run.stopped || !run.rounds.length;
  }

  /** What can be done with an answer; "Again" with the last one only. */
  actions(turn) {
    const button = (words, act, more) => make("button", { type: "button", onclick: act, ...more }, words);
    return [button("Copy", (event) => this.copy(turn, event.target)), button("Again", () => this.again(), { "data-last": "yes" })];
  }

  /** Browsers let pages copy at safe addresses only; elsewhere the text is selected. */
  async copy({ run, answer }, button) {
    try {
      await navigator.clipboard.writeText(run.text);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    } catch {
      getSelection().selectAllChildren(answer.said);
      this.say("The answer is selected: copy it with Ctrl+C.");
    }
  }

  /** Another answer to the last message. */
  again() {
    if (this.settings.invalid()) return;
    const typed = this.prompt.value;
    this.prompt.value = this.conversation.undo();
    this.first();
    this.prompt.value = typed;
  }

  halt() {
    this.run.stop();
    this.prompt.focus();
  }

  clear() {
    this.run?.stop();
    this.run = null;
    this.conversation.clear();
    this.page?.remove();
    this.page = this.shown = null;
    this.race.disabled = this.save.disabled = true;
    this.busy(false);
    this.say("");
    this.prompt.focus();
  }

  /** The same request once more, without drafts; both are then shown on one clock. */
  async second() {
    const [drafted] = this.source.runs;
    const run = new Run(this.server, drafted.path, { ...drafted.body, speculative: false });
    this.say("Plain decoding writes the same text …");
    this.race.disabled = true;
    await this.read(run, () => this.say(`Plain decoding writes the same text: ${run.rounds.length} passes …`));
    if (run !== this.run) return;
    this.race.disabled = !run.stopped;
    if (!run.facts?.end || run.stopped) return;
    this.source = new LiveSource(this.server, [drafted, run]);
    this.replacePage();
    this.say("Both runs are shown on one clock: Play starts them.");
  }

  /** A recorded translation, which every server has. */
  async example() {
    this.run?.stop();
    const run = new Run(this.server, "", {}, "german");
    this.source = new LiveSource(this.server, [run]);
    await this.read(run, () => {});
    if (run !== this.run || !run.facts?.end) return;
    this.replacePage();
    this.say("Recorded: the bundled pair translates a German sentence, a block of drafted words at a time.");
  }

  async read(run, listener) {
    this.run = run;
    this.busy(true);
    await this.attempt(async () => {
      this.say("");
      await run.read(listener);
      if (run === this.run) this.say(this.ending(run));
    });
    if (run === this.run) this.busy(false);
  }

  ending(run) {
    if (run.facts?.end?.dropped) return `The trace holds the first ${run.rounds.length} rounds; ${run.facts.end.dropped} more came after them.`;
    return "";
  }

  busy(busy) {
    this.stop.disabled = this.stop.hidden = !busy;
    this.write.hidden = busy;
    if (busy) this.race.disabled = this.save.disabled = true;
    else this.save.disabled = !this.run || !this.source.runs.some((run) => run.facts?.end);
  }

  /** The page of a run begins with its first event. */
  show(run) {
    if (run !== this.source.runs[0] || !run.facts) return;
    if (this.shown !== this.source) this.replacePage();
    else this.source.grown(run);
  }

  replacePage() {
    const page = document.createElement("dw-page");
    page.source = this.shown = this.source;
    this.page?.remove();
    this.page = page;
    this.rounds.append(page);
  }

  /** The traces as the file that `draftwood trace --input` reads. */
  async download() {
    await this.attempt(async () => {
      const files = await Promise.all(this.source.runs.map((run) => this.server.json(`v1/traces/${run.id}`)));
      const all = (name) => files.flatMap((file) => file[name]);
      const whole = { ...files[0], digests: all("digests"), traces: all("traces") };
      const address = URL.createObjectURL(new Blob([JSON.stringify(whole)], { type: "application/json" }));
      make("a", { href: address, download: `${this.source.runs[0].id}.json` }).click();
      setTimeout(() => URL.revokeObjectURL(address), 60_000);
    });
  }
}

customElements.define("dw-live", LivePage);
