/** A text as elements: fenced code, code in a line, and bold. Nothing in it is read as HTML. */
function formatted(text) {
  const spans = (part) => part.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).filter(Boolean).map((span) =>
    /^`.+`$/.test(span) ? make("code", {}, span.slice(1, -1)) : /^\*\*.+\*\*$/.test(span) ? make("strong", {}, span.slice(2, -2)) : span);
  return text.split(/^[ \t]*```[^\n`]*(?:\n|$)/m).flatMap((part, i) =>
    i % 2 ? [make("pre", { tabIndex: 0 }, make("code", {}, part.replace(/\n$/, "")))] : spans(i ? part.replace(/^\n+/, "") : part));
}

/** Arguments of a call, one below the other as far as they are JSON by now. */
function laidOut(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

/** A message of one role. */
class Bubble extends HTMLElement {
  connectedCallback() {
    if (this.said) return;
    this.said = make("div", { className: "said", dir: "auto" });
    this.article = make("article", {}, make("h3", {}, this.name), this.said);
    this.append(this.article);
  }

  show(text) {
    this.said.replaceChildren(...formatted(text));
  }
}

/** The bubbles of a conversation. A turn is what the user said, and the run that answers it. */
class Conversation extends HTMLElement {
  connectedCallback() {
    this.turns = [];
    this.log = make("div", { className: "log", role: "log", tabIndex: 0, "aria-label": "conversation" });
    this.append(this.log);
  }

  /** What stands in an empty conversation. */
  welcome(...content) {
    this.empty = make("div", { className: "empty" }, ...content);
    if (!this.turns.length) this.log.replaceChildren(this.empty);
  }

  clear() {
    this.turns = [];
    this.log.replaceChildren(this.empty);
  }

  bubble(role, name) {
    const made = Object.assign(document.createElement("dw-bubble"), { name, className: role });
    this.log.append(made);
    return made;
  }

  add(said, run, name) {
    this.empty.remove();
    this.last?.actions.replaceChildren(...[...this.last.actions.children].filter((button) => !button.dataset.last));
    const user = this.bubble("user", "You"), answer = this.bubble("assistant", name);
    user.show(said);
    const turn = { said, run, user, answer, calls: [], actions: make("div", { className: "controls" }), facts: make("p", { className: "quiet" }) };
    answer.article.append(make("footer", {}, turn.facts, turn.actions));
    this.turns.push(turn);
    this.log.setAttribute("aria-busy", "true");
    this.follow();
    return turn;
  }

  get last() {
    return this.turns.at(-1);
  }

  follow() {
    this.log.scrollTop = this.log.scrollHeight;
  }

  /** Whether the reader is at the end, and not further up. */
  get following() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
  }

  /** The answer of a turn as far as it is written. */
  grow({ run, answer, calls, facts }) {
    const { following } = this;
    if (run.reasoning && !answer.thought) {
      answer.thought = make("div", { className: "said" });
      answer.said.before(make("details", {}, make("summary", {}, "Reasoning"), answer.thought));
    }
    answer.thought?.replaceChildren(run.reasoning);
    if (answer.shown !== run.text) answer.show(answer.shown = run.text);
    answer.said.hidden = !run.text && Boolean(run.calls.length);
    run.calls.forEach((call, i) => {
      calls[i] ??= this.bubble("call", "Calls a function");
      calls[i].said.replaceChildren(make("code", {}, call.function.name), make("pre", { tabIndex: 0 }, laidOut(call.function.arguments)));
    });
    facts.textContent = run.stopped || run.reason ? run.summary() : "";
    if (following) this.follow();
  }

  /** The turn has ended. */
  end(turn, buttons) {
    const { following } = this;
    this.log.setAttribute("aria-busy", "false");
    this.grow(turn);
    turn.actions.replaceChildren(...buttons);
    if (following) this.follow();
  }

  /** Takes the last turn away; what was said in it. */
  undo() {
    const { said, user, answer, calls } = this.turns.pop();
    for (const bubble of [user, answer, ...calls]) bubble.remove();
    if (!this.turns.length) this.log.replaceChildren(this.empty);
    this.log.setAttribute("aria-busy", "false");
    return said;
  }

  /** The messages of a request: the conversation so far, and what is said now. */
  messages(system, said) {
    const before = this.turns.flatMap(({ said: content, run }) => [{ role: "user", content },
      { role: "assistant", content: run.text || (run.calls.length ? null : ""), ...(run.calls.length && { tool_calls: run.calls }) }]);
    return [...(system ? [{ role: "system", content: system }] : []), ...before, { role: "user", content: said }];
  }
}

customElements.define("dw-bubble", Bubble);
customElements.define("dw-chat", Conversation);
